"""Where the host waits for the device: by what it called, which operator, and which line of the user's."""

import re
from collections import Counter, defaultdict
from typing import Any

import numpy as np

from flatout.analyze.trace.events import CODES, Columns
from flatout.analyze.trace.spans import NOTHING
from flatout.analyze.trace.timeline import Timeline
from flatout.records.trace import SyncPoint

# Of a frame: file, line and function, as the profiler writes them.
_FRAME = re.compile(r"^(?P<file>.*\.py)\((?P<line>\d+)\): (?P<function>.*)$")
_LIBRARIES = re.compile(
    r"site-packages|dist-packages|/torch/|^torch/|/lib/python\d|<frozen|<built-in|importlib"
)
# Frames between a call and whoever is looked for: deeper stacks than this are given up.
_FRAMES_AT_MOST = 4000


def sync_points(found: Timeline) -> tuple[SyncPoint, ...]:
    """Calls that wait, by what called them; those outside of the window are no part of a step."""
    columns, rows = found.columns, found.sync_rows
    inside = (columns.start[rows] >= found.start) & (columns.start[rows] < found.end)
    if not inside.any():
        return ()
    stalls = np.zeros(len(rows))
    stalled_spans = found.parts.get("sync_stall", NOTHING)
    gap = np.searchsorted(found.idle[0], stalled_spans[0], side="right") - 1
    np.add.at(stalls, found.sync_of_gap[gap], stalled_spans[1] - stalled_spans[0])
    frames, operators = _Frames(columns), _names_by_external(columns)
    counts: Counter[tuple[str, str, str | None]] = Counter()
    host: Counter[tuple[str, str, str | None]] = Counter()
    stalled: dict[tuple[str, str, str | None], float] = defaultdict(float)
    for number in np.flatnonzero(inside):
        row = rows[number]
        call = columns.names[columns.name[row]]
        operator = operators.get(int(columns.external[row]), "")
        key = (call, operator, frames.of(int(columns.thread[row]), int(columns.start[row])))
        counts[key] += 1
        host[key] += int(max(0, columns.length[row]))
        stalled[key] += float(stalls[number])
    return tuple(
        SyncPoint(
            call=call,
            operator=operator,
            where=where,
            count=counts[call, operator, where] / found.steps,
            host_ms=found.ms_of(host[call, operator, where]),
            stall_ms=found.ms_of(stalled[call, operator, where]),
        )
        for call, operator, where in sorted(counts, key=lambda key: (-stalled[key], -host[key]))
    )


def _names_by_external(columns: Columns) -> dict[int, str]:
    rows = np.flatnonzero((columns.category == CODES["cpu_op"]) & (columns.external >= 0))
    return {int(columns.external[row]): columns.names[columns.name[row]] for row in rows} if len(rows) else {}


class _Frames:
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
