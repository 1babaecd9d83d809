"""The script behind `flatout.tune(build)`: trains what `build` sets up, until it is told to stop.

python -m flatout.entry.training MODULE_OR_FILE NAME
"""

import sys

from flatout.entry.importable import import_again


def main(place: str, name: str) -> None:
    """Train."""
    model, optimizer, loader, loss_of = import_again(place, name)()
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
