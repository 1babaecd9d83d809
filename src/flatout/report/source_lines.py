"""The lines of source around a place that a finding names, read when a page is made."""

import dataclasses
import re
import textwrap
from pathlib import Path

from flatout.records.finding import Place
from flatout.report.page import cut

_BEFORE, _AFTER = 2, 2
# What is larger was made by a program, and is not what anybody would edit.
_LARGEST_BYTES = 2_000_000
_LONGEST = 200


@dataclasses.dataclass(frozen=True)
class SourceLine:
    """One line, and whether it is the one."""

    number: int
    text: str
    is_meant: bool


def lines_around(place: Place) -> list[SourceLine]:
    """The line with its neighbours; nothing where the file is gone, too large or shorter than that."""
    try:
        path = Path(place.file)
        # A file that claims to be empty can be one of the system's own, without an end.
        if not path.is_file() or not 0 < path.stat().st_size < _LARGEST_BYTES:
            return []
        with path.open("rb") as file:
            text = file.read(_LARGEST_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return []
    # As Python counts lines; splitlines() would also cut at form feeds.
    every = re.split(r"\r\n|\r|\n", text.removeprefix("\ufeff"))
    if every[-1] == "":
        every.pop()
    if not 1 <= place.line <= len(every):
        return []
    first = max(1, place.line - _BEFORE)
    shown = [one.expandtabs(4) for one in every[first - 1 : place.line + _AFTER]]
    plain = textwrap.dedent("\n".join(one.replace("\f", " ") for one in shown)).split("\n")
    return [
        SourceLine(number, cut(one.rstrip(), _LONGEST), number == place.line)
        for number, one in enumerate(plain, start=first)
    ]
