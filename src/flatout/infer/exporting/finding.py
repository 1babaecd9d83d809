"""Finds what the user named, and the line of theirs at which something went wrong."""

import importlib
import re
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

from flatout.records.errors import CallerMistake, JobFailed, nearest

_EXPECTED = "module:function or file.py:function"
_FROM_USER_CODE = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def found(spec: str) -> Any:
    """What `module:function` names."""
    place, separator, name = spec.rpartition(":")
    if not separator or not place or not name:
        raise CallerMistake(
            f"{spec!r} names no function",
            expected=_EXPECTED,
            remedy="flatout export-model my_model:make --out model.pt2",
        )
    names = _names(place, spec)
    if name not in names:
        near = nearest(name, [one for one in names if not one.startswith("_")])
        raise CallerMistake(
            f"{place} has no {name!r}",
            expected="a function that returns the module, or the module and its inputs",
            remedy=f"did you mean {near!r}?" if near else f"write one into {place}",
        )
    return names[name]


def _names(place: str, spec: str) -> dict[str, Any]:
    try:
        if place.endswith(".py"):
            path = Path(place)
            if not path.is_file():
                raise CallerMistake(f"there is no file {place}", expected=_EXPECTED, remedy="see its name")
            sys.path.insert(0, str(path.resolve().parent))
            return runpy.run_path(str(path), run_name="__flatout_main__")
        return vars(importlib.import_module(place))
    except CallerMistake:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and place.split(".", maxsplit=1)[0] == error.name.split(".")[0]:
            raise CallerMistake(
                f"there is no module {place!r} for {spec!r}",
                expected=f"{_EXPECTED}, as seen from this folder",
                remedy="run it from the folder in which the module lies, or name its file",
            ) from None
        raise failure(error, f"importing {place}") from error
    except Exception as error:
        raise failure(error, f"importing {place}") from error


def failure(error: BaseException, doing: str) -> JobFailed:
    """What went wrong in code of the user's: where, and in whose words."""
    where = line_of(error)
    at = f" at {where}" if where else ""
    return JobFailed(
        f"{doing} failed{at}: {type(error).__name__}: {_said(error)}",
        expected="code that runs, and that torch.export can follow",
        remedy=f"look at {where}" if where else "the same with --debug",
    )


def line_of(error: BaseException) -> str:
    """The last line outside of torch and of us that was on the way, or that torch names; else empty."""
    named = _FROM_USER_CODE.findall(str(error))
    frames = [(frame.filename, str(frame.lineno)) for frame in traceback.extract_tb(error.__traceback__)]
    cause = error.__cause__ or error.__context__
    if cause is not None:
        frames += [(frame.filename, str(frame.lineno)) for frame in traceback.extract_tb(cause.__traceback__)]
    own = [(file, line) for file, line, *_ in [*frames, *named] if _is_theirs(file)]
    return f"{own[-1][0]}:{own[-1][1]}" if own else ""


def _is_theirs(file: str) -> bool:
    parts = Path(file).parts
    # What is made up (`<eval_with_key>`), torch, the standard library, and this package are not.
    if file.startswith("<") or "torch" in parts or not Path(file).is_file():
        return False
    ours = Path(__file__).resolve().parents[2]
    library = Path(traceback.__file__).resolve().parent
    path = Path(file).resolve()
    in_library = path.is_relative_to(library) and "site-packages" not in parts
    return not path.is_relative_to(ours) and not in_library


def _said(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return " ".join(lines[:4])[:600]
