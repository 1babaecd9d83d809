"""A plain file, a JSON object a line: needs nothing, and every tool reads it."""

from collections.abc import Sequence
from pathlib import Path

from flatout.monitor.sinks.protocol import WENT_WELL, Ending
from flatout.records.points import Point, line_of


class JsonLines:
    """Appends to a file, whole lines at a time: several processes may write to one."""

    def __init__(self, path: str | Path) -> None:
        self.note = ""
        place = Path(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        self._file = place.open("ab", buffering=0)

    def write(self, points: Sequence[Point]) -> None:
        """One write for all of them."""
        rest = "".join(f"{line_of(point)}\n" for point in points).encode()
        while rest:  # a disk that is nearly full takes a part
            rest = rest[self._file.write(rest) :]

    def close(self, _: Ending = WENT_WELL, /) -> None:
        """No more comes."""
        self._file.close()
