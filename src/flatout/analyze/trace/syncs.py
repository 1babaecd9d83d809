"""Where the host waits for the device: by what it called, which operator, and which line of the user's."""

from collections import Counter, defaultdict

import numpy as np

from flatout.analyze.trace.events import CODES, Columns
from flatout.analyze.trace.frames import Frames
from flatout.analyze.trace.spans import NOTHING
from flatout.analyze.trace.timeline import Timeline
from flatout.records.trace import SyncPoint


def sync_points(found: Timeline) -> tuple[SyncPoint, ...]:
    """Calls that wait, by what called them."""
    columns, rows = found.columns, found.sync_rows
    if not len(rows):
        return ()
    stalls = np.zeros(len(rows))
    stalled_spans = found.parts.get("sync_stall", NOTHING)
    gap = np.searchsorted(found.idle[0], stalled_spans[0], side="right") - 1
    np.add.at(stalls, found.sync_of_gap[gap], stalled_spans[1] - stalled_spans[0])
    frames, operators = Frames(columns), _names_by_external(columns)
    counts: Counter[tuple[str, str, str | None]] = Counter()
    host: Counter[tuple[str, str, str | None]] = Counter()
    stalled: dict[tuple[str, str, str | None], float] = defaultdict(float)
    for number, row in enumerate(rows):
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
