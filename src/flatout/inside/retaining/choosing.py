"""Of several names for one object the one that tells most, with its line, and what to do about it."""

import dataclasses
import linecache
import sys

from flatout.inside.retaining.growing_lines import Wanted, line_that_grows
from flatout.inside.retaining.variables import Name
from flatout.levers.places import is_users_file
from flatout.records.finding import Place

_ATTRIBUTES = ("attribute", "class attribute")
# In this order where nothing else tells them apart.
_KINDS = ("local", "global", "attribute", "class attribute", "closure", "default argument", "cache")


@dataclasses.dataclass(frozen=True)
class Found:
    """A line, and whether it adds to what it names, or makes it."""

    place: Place
    adds: bool


def best_name(names: list[Name]) -> tuple[Name, Found | None]:
    """One of the user's own with a line that adds to it, if there is one."""
    lines = {name: _line(name) for name in dict.fromkeys(names)}

    def worth(name: Name) -> tuple[bool, bool, int]:
        line = lines[name]
        return (line is None or not line.adds, not is_users_file(name.file), _KINDS.index(name.kind))

    best = min(lines, key=worth)
    return best, lines[best]


def _line(name: Name) -> Found | None:
    if name.kind == "cache" and name.lines is not None:  # the function that is remembered
        return Found(Place(file=name.file, line=name.lines[0], function=name.text.removesuffix("()")), True)
    is_attribute = name.kind in _ATTRIBUTES
    wanted = Wanted(name.text.rpartition(".")[2], attribute=is_attribute, scope=name.lines)
    makes = None
    for file in (*([name.file] if name.file else _cells()), *(_other_files() if is_attribute else ())):
        line = line_that_grows(file, wanted)
        if line is not None:
            found = Found(Place(file=file, line=line.number, function=line.function), line.adds)
            if line.adds:
                return found
            makes = makes or found
    return makes


def _cells() -> list[str]:
    """Of a notebook, whose globals belong to no file."""
    return [file for file in list(linecache.cache) if file.startswith("<ipython") or "ipykernel" in file]


def _other_files() -> list[str]:
    """The user's own modules: attributes are added to from outside, too."""
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    return [file for file in files if isinstance(file, str) and file.endswith(".py") and is_users_file(file)]


def fix_for(name: str, *, keeps_graph: bool, is_tensor: bool) -> str:
    """What to change."""
    if keeps_graph and is_tensor:
        return f"use .item() or .detach(): {name} carries the graphs of all steps before"
    if keeps_graph:
        return (
            f"use .item() or .detach() on what goes into {name}: it keeps the graph that it was computed with"
        )
    if is_tensor:
        return f"let {name} not grow: keep a sum or a count, or write it out and begin anew"
    return f"empty {name} now and then, bound it (collections.deque(maxlen=...)), or keep numbers (.item())"
