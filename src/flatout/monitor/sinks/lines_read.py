"""Follows what scripts log to the folders of their ranks: files that grow, and may end in mid-line."""

from pathlib import Path

from flatout.records.points import LOGGED_FILE, Point, point_of
from flatout.records.session import RANKS_FOLDER


class LoggedLines:
    """The new points of all ranks of one life of a job, at each look."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._read: dict[Path, int] = {}

    def look(self) -> list[Point]:
        """Whole lines that came since the last time."""
        found: list[Point] = []
        for path in sorted((self._place / RANKS_FOLDER).glob(f"*/{LOGGED_FILE}")):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            found += (point for line in whole.splitlines() if (point := point_of(line)) is not None)
        return found
