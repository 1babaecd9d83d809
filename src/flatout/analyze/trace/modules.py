"""Which part of the model the device worked for, where calls of modules are marked in a trace.

Marks are Flatout's own (`inside/module_marks.py`), or those that torch's profiler leaves beside Python's
stacks. What a backward pass launches belongs to the module whose operator it derives: the two share a number.
"""

import re
from typing import Any

import numpy as np

from flatout.analyze.trace.events import CODES, Columns
from flatout.analyze.trace.host import own_time_of_rows
from flatout.analyze.trace.rows import launchers
from flatout.analyze.trace.timeline import Timeline
from flatout.records.session import MODULE_MARK
from flatout.records.trace import ModuleUse

_TORCHS = "nn.Module: "
_COUNTED = re.compile(r"_\d+$")
_DERIVES = "autograd::engine::evaluate_function"
_TOP = 40


def modules_of(found: Timeline) -> tuple[ModuleUse, ...]:
    """Modules by what they launched themselves, not in a module inside; layers that repeat are one."""
    columns = found.columns
    calls = _Nested(columns, _marks(columns))
    if not calls.count:
        return ()
    operators, taken, all_taken = _work(found)
    if not len(operators):
        return ()
    forward = calls.around(columns.thread[operators], columns.start[operators])
    derived = _derived(columns, operators, calls)
    place = np.where(forward >= 0, forward, derived)
    labels = [_label(columns, calls, number) for number in range(calls.count)]
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    of_call = np.array([numbers[label] for label in labels])
    some = place >= 0
    label_of = of_call[place[some]]
    size = len(numbers)
    ahead = np.bincount(label_of, weights=taken[some] * (forward[some] >= 0), minlength=size)
    whole = np.bincount(label_of, weights=taken[some], minlength=size)
    total, names = all_taken or 1.0, list(numbers)
    return tuple(
        ModuleUse(
            name=names[number],
            ms=found.ms_of(float(whole[number])),
            forward_ms=found.ms_of(float(ahead[number])),
            backward_ms=found.ms_of(float(whole[number] - ahead[number])),
            share=float(whole[number]) / total,
        )
        for number in np.argsort(-whole)[:_TOP]
        if whole[number] > 0
    )


class _Nested:
    """Calls that lie inside each other, thread by thread."""

    def __init__(self, columns: Columns, rows: Any) -> None:
        rows = rows[columns.length[rows] >= 0]
        order = np.lexsort((-columns.length[rows], columns.start[rows], columns.thread[rows]))
        self.rows = rows[order]
        self.count = len(self.rows)
        self._threads = columns.thread[self.rows]
        self._starts = columns.start[self.rows]
        self._ends = self._starts + columns.length[self.rows]
        self.parent = self._parents()

    def _parents(self) -> Any:
        parents = np.full(self.count, -1)
        open_ones: list[int] = []
        threads, starts, ends = self._threads.tolist(), self._starts.tolist(), self._ends.tolist()
        for place in range(self.count):
            while open_ones and (
                threads[open_ones[-1]] != threads[place] or ends[open_ones[-1]] <= starts[place]
            ):
                open_ones.pop()
            parents[place] = open_ones[-1] if open_ones else -1
            open_ones.append(place)
        return parents

    def around(self, threads: Any, instants: Any) -> Any:
        """The innermost call around each instant, or -1."""
        found = np.full(len(instants), -1)
        for thread in np.unique(self._threads):
            first, last = np.searchsorted(self._threads, [thread, thread + 1])
            mine = np.flatnonzero(threads == thread)
            place = first - 1 + np.searchsorted(self._starts[first:last], instants[mine], side="right")
            place[place < first] = -1
            # Upwards, until the call has not ended by then.
            while (over := (place >= 0) & (self._ends[place] < instants[mine])).any():
                place[over] = self.parent[place[over]]
            found[mine] = place
        return found


def _marks(columns: Columns) -> Any:
    """Flatout's own; where there are none, torch's."""
    for kind, mark in (("user_annotation", MODULE_MARK), ("python_function", _TORCHS)):
        marked = [number for number, name in enumerate(columns.names) if name.startswith(mark)]
        rows = np.flatnonzero(np.isin(columns.name, marked) & (columns.category == CODES[kind]))
        if len(rows):
            return rows
    return _NONE


def _work(found: Timeline) -> tuple[Any, Any, float]:
    """Operators, for how long the device worked for each, and in all; without one, how long they took."""
    columns, rows = found.columns, found.device_rows
    if not len(rows):
        operators, own = own_time_of_rows(columns, found.start, found.end)
        return operators, own, float(own.sum())
    operators, launched = launchers(columns, rows)
    # Kernels that no operator launched are in it, as they are in the shares of kernels and operators.
    return operators, columns.length[launched].astype(np.float64), float(columns.length[rows].sum())


def _derived(columns: Columns, operators: Any, calls: _Nested) -> Any:
    """Of operators in a backward pass: the call whose operator they derive, or -1."""
    derives = np.array([name.startswith(_DERIVES) for name in columns.names], bool)[columns.name]
    is_operator = columns.category == CODES["cpu_op"]
    nodes = _Nested(columns, np.flatnonzero(derives & is_operator))
    found = np.full(len(operators), -1)
    if not nodes.count:
        return found
    node = nodes.around(columns.thread[operators], columns.start[operators])
    wanted = np.where(node >= 0, columns.sequence[nodes.rows[node]], -1)
    # The last operator with a number is the one that was recorded under it.
    ahead = np.flatnonzero(is_operator & ~derives & (columns.sequence >= 0))
    inside = nodes.around(columns.thread[ahead], columns.start[ahead]) < 0
    ahead = ahead[inside]
    if not len(ahead):
        return found
    order = ahead[np.lexsort((columns.start[ahead], columns.sequence[ahead]))]
    place = np.searchsorted(columns.sequence[order], wanted, side="right") - 1
    known = (place >= 0) & (wanted >= 0) & (columns.sequence[order[np.maximum(place, 0)]] == wanted)
    origin = order[place[known]]
    found[known] = calls.around(columns.thread[origin], columns.start[origin])
    return found


def _label(columns: Columns, calls: _Nested, place: int) -> str:
    """Flatout's marks name a module in full; those of torch its kind, so that its outer ones must be told."""
    name: str = columns.names[columns.name[calls.rows[place]]]
    if name.startswith(MODULE_MARK):
        return name.removeprefix(MODULE_MARK)
    kinds = []
    while place >= 0:
        name = columns.names[columns.name[calls.rows[place]]]
        kinds.append(_COUNTED.sub("", name.removeprefix(_TORCHS)))
        place = int(calls.parent[place])
    return ".".join(reversed(kinds))


_NONE = np.empty(0, np.int64)
