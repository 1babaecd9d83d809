"""The script behind `flatout.tune(build)`: trains what `build` sets up, until it is told to stop.

python -m flatout.entry.training MODULE_OR_FILE NAME
"""

import importlib
import runpy
import sys
from typing import Any


def main(place: str, name: str) -> None:
    """Train."""
    if place.endswith(".py"):
        # As multiprocessing does it: the script's own `if __name__ == "__main__"` must not run.
        build: Any = runpy.run_path(place, run_name="__flatout_main__")[name]
    else:
        build = getattr(importlib.import_module(place), name)
    model, optimizer, loader, loss_of = build()
    while True:
        came = False
        for batch in loader:
            came = True
            loss = loss_of(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if not came:
            sys.exit("the loader yields nothing")


if __name__ == "__main__":
    main(*sys.argv[1:])
