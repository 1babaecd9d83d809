"""The steps that a trace marks, and what the device did for them.

Marks are the host's, and a host that never waits runs ahead: its device works on a step when the marks are
long past. So work belongs to the step that launched it, and the window is the device's own: from where it
began with what the first step launched, to where the last of it ended.
"""

import dataclasses
import re
from typing import Any

import numpy as np

from flatout.analyze.trace.events import CODES, Columns
from flatout.analyze.trace.rows import rows_of

ON_DEVICE = (CODES["kernel"], CODES["gpu_memcpy"], CODES["gpu_memset"])
CALLS = (CODES["cuda_runtime"], CODES["cuda_driver"])
_STEP = re.compile(r"ProfilerStep#\d+")
# Nothing lasts so long after the last event began: whoever wrote such a length did not know it.
_LONGEST_NS = 3_600_000_000_000
# A device that is this share of a step behind is on a clock of its own.
_BEHIND = 0.02


@dataclasses.dataclass(frozen=True)
class Steps:
    """What counts of a trace: instants in nanoseconds, and rows on the device that was busiest."""

    # On the device; without one, and where it keeps up, these are the host's.
    start: int
    end: int
    # Between the marks, on the host.
    host_start: int
    host_end: int
    # Milliseconds of each step; empty where none is marked.
    step_ms: list[float]
    device_rows: Any
    # Whose clock the steps are on, and how far the device is behind the last mark.
    clock: str = "host"
    behind_ns: int = 0


def steps_of(columns: Columns) -> Steps:
    """The steps; of a trace without marks, all of it is one that has no length."""
    known = has_length(columns)
    marked = _marks(columns, known)
    rows = np.flatnonzero(np.isin(columns.category, ON_DEVICE) & known)
    if not len(marked):
        whole = np.flatnonzero(known)
        start = int(columns.start[whole].min()) if len(whole) else 0
        end = int(_ends(columns, whole).max()) if len(whole) else 0
        return Steps(start, end, start, end, [], _of_the_busiest_device(columns, rows))
    starts, ends = columns.start[marked], np.maximum.accumulate(_ends(columns, marked))
    first, last = int(starts[0]), int(ends[-1])
    launched = _launched(columns, rows)
    if not (launched >= 0).any():  # nobody wrote down the calls: what runs between the marks
        between = (columns.start[rows] < last) & (_ends(columns, rows) > first)
        own = _of_the_busiest_device(columns, rows[between])
        return Steps(first, last, first, last, _milliseconds(columns.length[marked]), own)
    is_own = (launched >= first) & (launched < last)
    own = _of_the_busiest_device(columns, rows[is_own])
    if not len(own):
        return Steps(first, last, first, last, _milliseconds(columns.length[marked]), own)
    device = columns.device[own[0]]
    others = rows[~is_own & (columns.device[rows] == device)]
    begins = int(columns.start[own].min())
    earlier = others[columns.start[others] < begins]
    busy_until = min(begins, int(_ends(columns, earlier).max())) if len(earlier) else first
    start = max(first, busy_until)
    # When the device was through with each step; where it kept up, when the host was.
    number = np.searchsorted(starts, _launched(columns, own), side="right") - 1
    through = np.full(len(starts), first)
    np.maximum.at(through, number, _ends(columns, own))
    borders = np.maximum.accumulate(np.maximum(ends, through))
    behind = int(borders[-1]) - last
    lengths = np.diff(np.concatenate(([start], borders)))
    if max(behind, start - first) <= _BEHIND * float(np.median(lengths)):
        return Steps(first, last, first, last, _milliseconds(columns.length[marked]), _between(columns, own, first, last))
    return Steps(start, int(borders[-1]), first, last, _milliseconds(lengths), own, "device", max(0, behind))


def has_length(columns: Columns) -> Any:
    """Rows with a beginning and a length that can be."""
    known = (columns.length >= 0) & (columns.start >= 0)
    if not known.any():
        return known
    return known & (columns.length < int(columns.start[known].max()) - columns.start + _LONGEST_NS)


def _marks(columns: Columns, known: Any) -> Any:
    """In the order of time, and of one thread: several may mark the same steps."""
    rows = rows_of(columns, (CODES["user_annotation"],), _STEP)
    rows = rows[known[rows]]
    if not len(rows):
        return rows
    threads, counts = np.unique(columns.thread[rows], return_counts=True)
    rows = rows[columns.thread[rows] == threads[np.argmax(counts)]]
    return rows[np.argsort(columns.start[rows], kind="stable")]


def _launched(columns: Columns, rows: Any) -> Any:
    """When the host launched each row of the device; -1 where nobody wrote that down."""
    calls = np.flatnonzero(np.isin(columns.category, CALLS) & (columns.correlation >= 0) & (columns.start >= 0))
    if not len(calls) or not len(rows):
        return np.full(len(rows), -1)
    order = calls[np.argsort(columns.correlation[calls], kind="stable")]
    wanted = columns.correlation[rows]
    place = np.minimum(np.searchsorted(columns.correlation[order], wanted), len(order) - 1)
    found = order[place]
    return np.where((wanted >= 0) & (columns.correlation[found] == wanted), columns.start[found], -1)
