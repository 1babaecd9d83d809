"""Which line of the user's own source was running, where a trace has Python's stacks."""

import re
from typing import Any

import numpy as np

from flatout.analyze.trace.events import CODES, Columns

# Of a frame: file, line and function, as the profiler writes them.
_FRAME = re.compile(r"^(?P<file>.*\.py)\((?P<line>\d+)\): (?P<function>.*)$")
# torch itself may be built anywhere, and a user's own folder be called so: what lies in it tells.
_LIBRARIES = re.compile(
    r"site-packages|dist-packages|^torch/|/torch/(_|(amp|autograd|backends|cuda|distributed|fx|jit|nn|optim"
    r"|profiler|utils)/|(functional|overrides|serialization)\.py)|/lib/python\d|<frozen|<built-in|importlib"
    r"|/flatout/(inside|levers|entry)/"
)
# Frames between a call and whoever is looked for: deeper stacks than this are given up.
_FRAMES_AT_MOST = 4000


class Frames:
    """Which line of the user's own source was running, where the trace has Python's stacks."""

    def __init__(self, columns: Columns) -> None:
        rows = np.flatnonzero((columns.category == CODES["python_function"]) & (columns.length >= 0))
        self._columns = columns
        self._own: list[str | None] = [_place(name) for name in columns.names] if len(rows) else []
        self._by_thread: dict[int, Any] = {}
        for thread in np.unique(columns.thread[rows]) if len(rows) else ():
            mine = rows[columns.thread[rows] == thread]
            self._by_thread[int(thread)] = mine[np.argsort(columns.start[mine], kind="stable")]

    def of(self, thread: int, instant: int) -> str | None:
        """The innermost frame of the user's that was running then."""
        rows = self._by_thread.get(thread)
        if rows is None:
            return None
        columns = self._columns
        place = int(np.searchsorted(columns.start[rows], instant, side="right")) - 1
        for row in rows[max(0, place + 1 - _FRAMES_AT_MOST) : place + 1][::-1]:
            own = self._own[int(columns.name[row])]
            if own is not None and columns.start[row] + columns.length[row] >= instant:
                return own
        return None


def _place(name: str) -> str | None:
    found = _FRAME.match(name)
    if found is None or _LIBRARIES.search(found["file"]):
        return None
    return f"{found['file']}:{found['line']} in {found['function']}"
