"""Functions that another process can find again."""

import inspect
import sys
from pathlib import Path
from typing import Any

from flatout.records.errors import CallerMistake


def where_found(function: Any) -> tuple[str, str, str]:
    """Module and name under which another process finds it; the file where the module is a script."""
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    if (
        not (inspect.isfunction(function) or inspect.isclass(function))
        or "<" in name
        or "." in name
        or not module
    ):
        raise CallerMistake(
            f"{function!r} cannot be found by another process",
            expected="a function at the top of a module or script",
            remedy="move it there; what it needs, it can read from arguments or the environment",
        )
    if module != "__main__":
        return module, name, ""
    file = getattr(sys.modules["__main__"], "__file__", None)
    if file is None:
        raise CallerMistake(
            f"{name} was typed into a notebook or a prompt: no other process can find it",
            expected="a function in a file",
            remedy="write it into a module beside the notebook, and import it",
        )
    return module, name, str(Path(file).resolve())


def import_again(place: str, name: str) -> Any:
    """What `where_found` found, in another process; `place` is a module, or a script's file."""
    import importlib
    import runpy

    if Path(place).is_absolute():  # as `where_found` has it, whatever a script's name ends in
        # As multiprocessing does it: the script's own `if __name__ == "__main__"` must not run.
        return runpy.run_path(place, run_name="__flatout_main__")[name]
    return getattr(importlib.import_module(place), name)
