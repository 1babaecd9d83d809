"""A trace without a GPU's kernels: what the host did."""

import re
from typing import Any

import numpy as np

from flatout.analyze.trace.events import CODES, Columns
from flatout.analyze.trace.rows import rows_of, spans_of
from flatout.analyze.trace.spans import Spans, divided, merged

_OPTIMIZER = re.compile(r"^Optimizer\.step")
_BACKWARD = re.compile(r"^autograd::engine::evaluate_function")


def host_parts(columns: Columns, loader: Spans, start: int, end: int) -> dict[str, Spans]:
    """Each instant given to one part: waiting for data, updating, computing, or nothing that is known."""
    updates = rows_of(columns, (CODES["user_annotation"], CODES["cpu_op"]), _OPTIMIZER)
    operators = rows_of(columns, (CODES["cpu_op"],))
    parts, rest = divided(
        (
            ("input_wait", loader),
            ("optimizer", _after_closures(columns, spans_of(columns, updates))),
            ("host_compute", spans_of(columns, operators)),
        ),
        start,
        end,
    )
    return {**parts, "unattributed": rest}


def _after_closures(columns: Columns, updates: Spans) -> Spans:
    """What is left of updates that run the model themselves, as Lightning's do, after their pass backward."""
    backward = rows_of(columns, (CODES["cpu_op"],), _BACKWARD)
    begun, done = (np.sort(one) for one in spans_of(columns, backward))
    if not len(begun):
        return updates
    starts, ends = updates
    # The last pass that began before each update's end counts where it ended inside of the update.
    last = np.searchsorted(begun, ends, side="left") - 1
    ended = np.where(last >= 0, done[np.maximum(last, 0)], starts)
    return merged(np.clip(ended, starts, ends), ends)


def own_times(columns: Columns, start: int, end: int) -> tuple[Any, Any]:
    """By name: calls of operators in a window, and the time that each spent in itself, not in others."""
    rows, own = own_time_of_rows(columns, start, end)
    size, names = len(columns.names), columns.name[rows]
    return np.bincount(names, minlength=size), np.bincount(names, weights=own, minlength=size)


def own_time_of_rows(columns: Columns, start: int, end: int) -> tuple[Any, Any]:
    """Operators in a window, and the time that each spent in itself, not in others."""
    rows = np.flatnonzero((columns.category == CODES["cpu_op"]) & (columns.length >= 0))
    rows = rows[(columns.start[rows] >= start) & (columns.start[rows] < end)]
    own = columns.length[rows].astype(np.float64)
    order = np.lexsort((-columns.length[rows], columns.start[rows], columns.thread[rows]))
    open_ones: list[int] = []
    threads, starts, lengths = columns.thread[rows], columns.start[rows], columns.length[rows]
    for place in order.tolist():
        while open_ones and (
            threads[open_ones[-1]] != threads[place]
            or starts[open_ones[-1]] + lengths[open_ones[-1]] <= starts[place]
        ):
            open_ones.pop()
        if open_ones:
            own[open_ones[-1]] -= lengths[place]
        open_ones.append(place)
    return rows, np.maximum(own, 0)
