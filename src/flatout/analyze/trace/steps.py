"""The steps that a trace marks, and what the device did for them.

Marks are the host's, and a host that never waits runs ahead: its device works on a step when the marks are
long past. So work belongs to the step that launched it, and the window is the device's own: from where it
began with what the first step launched, to where the last of it ended.
"""

import dataclasses
import re
from typing import Any, Literal

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
    clock: Literal["device", "host"] = "host"
    behind_ns: int = 0


def steps_of(columns: Columns) -> Steps:
    """The steps; of a trace without marks, all of it is one that has no length."""
    known = has_length(columns)
    marked = _marks(columns, known)
    rows = np.flatnonzero(np.isin(columns.category, ON_DEVICE) & known)
    if not len(marked):
        start, end = _extent(columns, np.flatnonzero(known))
        return Steps(start, end, start, end, [], _of_the_busiest_device(columns, rows))
    first, last = _extent(columns, marked)
    launched = _launched(columns, rows)
    is_own = (launched >= first) & (launched < last) & (columns.start[rows] - launched < _LONGEST_NS)
    own = _of_the_busiest_device(columns, rows[is_own])
    if not len(own):
        return Steps(first, last, first, last, _milliseconds(columns.length[marked]), own)
    start = _turned_to(columns, own, rows[~is_own], first)
    borders = _through_with(columns, own, marked, start)
    lengths = np.diff(np.concatenate(([start], borders)))
    # A step that launched nothing takes the device no time, and is none.
    lengths = lengths[lengths > 0]
    behind = int(borders[-1]) - last
    if max(behind, start - first) <= _BEHIND * float(np.median(lengths)):
        return Steps(first, last, first, last, _milliseconds(columns.length[marked]), own)
    return Steps(start, int(borders[-1]), first, last, _milliseconds(lengths), own, "device", behind)


def _turned_to(columns: Columns, own: Any, others: Any, first: int) -> int:
    """When the device turned to the first step: at its mark, or when it was through with what came before."""
    begins = int(columns.start[own].min())
    others = others[columns.device[others] == columns.device[own[0]]]
    earlier = others[columns.start[others] < begins]
    if not len(earlier):
        return first
    return max(first, min(begins, int(_ends(columns, earlier).max())))


def _through_with(columns: Columns, own: Any, marked: Any, start: int) -> Any:
    """When each step was over on the device; where it keeps up, when the host was.

    A copy goes on beside the steps that follow (a checkpoint's, say), and so may a long kernel on a stream of
    its own: the kernels of the busiest stream tell, where there are any.
    """
    kernels = own[columns.category[own] == CODES["kernel"]]
    own = _of_the_busiest(columns, kernels if len(kernels) else own, columns.thread)
    through = np.full(len(marked), start)
    number = np.searchsorted(columns.start[marked], _launched(columns, own), side="right") - 1
    np.maximum.at(through, np.maximum(number, 0), _ends(columns, own))
    return np.maximum.accumulate(np.maximum(_ends(columns, marked), through))


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
    """When the host launched each row of the device.

    By the call, else by the operator, else as what ran before it, on its own stream if that is known of any
    there. What comes before all of these was launched before anything was written down (profilers leave out
    calls that began too early, and keep their kernels): -1. Where no call was written down, when it ran.
    """
    found = np.full(len(rows), -1)
    calls = np.flatnonzero(np.isin(columns.category, CALLS) & (columns.correlation >= 0))
    found = _starts_of_same(columns, columns.correlation, calls, rows, found)
    operators = np.flatnonzero((columns.category == CODES["cpu_op"]) & (columns.external >= 0))
    found = _starts_of_same(columns, columns.external, operators, rows, found)
    is_early = np.zeros(len(rows), bool)
    for stream in np.unique(columns.thread[rows[found >= 0]]):
        on_it = np.flatnonzero(columns.thread[rows] == stream)
        found[on_it] = _as_before(columns, rows[on_it], found[on_it])
        is_early[on_it] = (found[on_it] < 0) & (columns.correlation[rows[on_it]] >= 0)
    alone = np.flatnonzero(~is_early)
    found[alone] = _as_before(columns, rows[alone], found[alone])
    return np.where((found < 0) & ~is_early, columns.start[rows], found)


def _as_before(columns: Columns, rows: Any, found: Any) -> Any:
    """What is known of each, or else of the last before it."""
    order = np.argsort(columns.start[rows], kind="stable")
    place = np.maximum.accumulate(np.where(found[order] >= 0, np.arange(len(rows)), -1))
    filled = found.copy()
    filled[order] = np.where(place >= 0, found[order][np.maximum(place, 0)], -1)
    return filled


def _starts_of_same(columns: Columns, numbers: Any, hosts: Any, rows: Any, found: Any) -> Any:
    """Where nothing was found yet: the start of the host's row that has the same number."""
    hosts = hosts[columns.start[hosts] >= 0]
    if not len(hosts) or not len(rows):
        return found
    order = hosts[np.argsort(numbers[hosts], kind="stable")]
    wanted = numbers[rows]
    place = order[np.minimum(np.searchsorted(numbers[order], wanted), len(order) - 1)]
    matches = (found < 0) & (wanted >= 0) & (numbers[place] == wanted)
    return np.where(matches, columns.start[place], found)


def _extent(columns: Columns, rows: Any) -> tuple[int, int]:
    """From where the first of them begins to where the last ends."""
    return (int(columns.start[rows].min()), int(_ends(columns, rows).max())) if len(rows) else (0, 0)


def _ends(columns: Columns, rows: Any) -> Any:
    return columns.start[rows] + columns.length[rows]


def _milliseconds(lengths: Any) -> list[float]:
    return [float(value) / 1e6 for value in lengths]


def _of_the_busiest_device(columns: Columns, rows: Any) -> Any:
    return _of_the_busiest(columns, rows, columns.device)


def _of_the_busiest(columns: Columns, rows: Any, places: Any) -> Any:
    """Those that ran where most of the time was spent: on one device, or one stream."""
    of_rows = places[rows]
    if not len(rows) or (of_rows == of_rows[0]).all():
        return rows
    busiest = max(np.unique(of_rows), key=lambda one: columns.length[rows][of_rows == one].sum())
    return rows[of_rows == busiest]
