"""Each instant of a trace given to one part: what the device computed, or why it did not."""

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from flatout.analyze.trace.events import CODES, Columns
from flatout.analyze.trace.host import host_parts
from flatout.analyze.trace.kernels import kind_of
from flatout.analyze.trace.rows import rows_of, spans_of
from flatout.analyze.trace.spans import NOTHING, Spans, both, divided, within, without
from flatout.analyze.trace.steps import CALLS, ON_DEVICE, Steps, steps_of

_WORK = (CODES["cpu_op"], CODES["user_annotation"])
# What the device does, the part of the waterfall that it belongs to; where two run at once, the first counts.
_PARTS = {
    "matmul": ("matmul", "convolution"),
    "attention": ("attention",),
    "memory_bound": ("memory_bound", "reduction"),
    "optimizer": ("optimizer",),
    "other_gpu": ("other_gpu",),
    "communication": ("communication",),
    "host_to_device": ("copy",),
}
_LOADER = re.compile(
    r"enumerate\(DataLoader\)|_(Single|Multi)ProcessDataLoaderIter\.__next__|^flatout\.input"
)
SYNCS = re.compile(
    r"^(cuda|hip)(Stream|Device|Event)Synchronize$|^cudaMemcpy$|^cuStreamSynchronize$|^cuCtxSynchronize$"
)
_GRAPH_LAUNCHES = re.compile(r"^(cuda|cu|hip)GraphLaunch")


@dataclasses.dataclass(frozen=True)
class Timeline:
    """A trace by its window: rows that count, spans of every part, and the gaps between them."""

    columns: Columns
    marked: Steps
    # Rows that wait for the device.
    sync_rows: Any
    kinds: list[str]
    parts: dict[str, Spans]
    idle: Spans
    # By gap: the row in `sync_rows` that waited when it began, or -1.
    sync_of_gap: Any
    # Launches of graphs of which the device has no kernel: it looks idle, and was not.
    lost_graphs: int = 0

    @property
    def start(self) -> int:
        """Nanoseconds, of the device where it is behind the host."""
        return self.marked.start

    @property
    def end(self) -> int:
        """Likewise."""
        return self.marked.end

    @property
    def length(self) -> int:
        """Nanoseconds."""
        return self.end - self.start

    @property
    def step_ms(self) -> list[float]:
        """Milliseconds of the marked steps; empty where none is marked."""
        return self.marked.step_ms

    @property
    def device_rows(self) -> Any:
        """What the device that was busiest did for these steps."""
        return self.marked.device_rows

    @property
    def steps(self) -> int:
        """At least one: the whole trace."""
        return max(1, len(self.step_ms))

    def ms_of(self, nanoseconds: float) -> float:
        """Milliseconds of one step."""
        return nanoseconds / 1e6 / self.steps


def timeline(columns: Columns) -> Timeline:
    """Lay it out."""
    marked = steps_of(columns)
    start, end, rows = marked.start, marked.end, marked.device_rows
    kinds: list[str] = [kind_of(name) for name in columns.names]
    parts, idle = divided(_work(columns, rows, kinds), start, end)
    sync_rows = _syncs_of(columns, marked)
    sync_of_gap = _waiting_at(columns, sync_rows, idle[0])
    waits = within(spans_of(columns, rows_of(columns, _WORK, _LOADER)), start, end)
    if not len(rows):
        parts = host_parts(columns, waits, start, end)
    else:
        parts["input_wait"] = both(idle, waits)
        rest = without(idle, waits)
        after_sync = sync_of_gap[np.searchsorted(idle[0], rest[0], side="right") - 1] >= 0
        has_calls = bool(np.isin(columns.category, CALLS).any())
        parts["sync_stall"] = rest[0][after_sync], rest[1][after_sync]
        parts["launch_gap" if has_calls else "unattributed"] = rest[0][~after_sync], rest[1][~after_sync]
    lost = _lost_graphs(columns, marked)
    if lost and len(rows):
        parts |= {"input_wait": NOTHING, "sync_stall": NOTHING, "launch_gap": NOTHING, "unattributed": idle}
    return Timeline(columns, marked, sync_rows, kinds, parts, idle, sync_of_gap, lost)


def _work(columns: Columns, rows: Any, kinds: list[str]) -> Iterator[tuple[str, Spans]]:
    """What the device did, by part."""
    kind_of_row = np.array(kinds)[columns.name[rows]] if len(rows) else np.empty(0, str)
    to_device = _is_copy_to_device(columns, rows)
    for part, own_kinds in _PARTS.items():
        own = np.isin(kind_of_row, own_kinds)
        if part == "host_to_device":
            own &= to_device
        elif part == "memory_bound":  # a copy within the device moves bytes as any such kernel does
            own |= (kind_of_row == "copy") & ~to_device
        yield part, spans_of(columns, rows[own])


def _syncs_of(columns: Columns, marked: Steps) -> Any:
    """Calls of these steps that wait; not those of whoever ends the recording."""
    rows = rows_of(columns, CALLS, SYNCS)
    rows = rows[(columns.start[rows] >= marked.host_start) & (columns.start[rows] < marked.host_end)]
    return rows[np.argsort(columns.start[rows], kind="stable")]


def _lost_graphs(columns: Columns, marked: Steps) -> int:
    """How many graphs these steps launched whose kernels nobody recorded."""
    launches = rows_of(columns, CALLS, _GRAPH_LAUNCHES)
    starts = columns.start[launches]
    launches = launches[(starts >= marked.host_start) & (starts < marked.host_end)]
    seen = columns.correlation[np.isin(columns.category, ON_DEVICE)]
    numbers = columns.correlation[launches]
    return int((~np.isin(numbers[numbers >= 0], seen)).sum())


def _is_copy_to_device(columns: Columns, rows: Any) -> Any:
    named = np.array(["HtoD" in name for name in columns.names], bool)
    return named[columns.name[rows]]


def _waiting_at(columns: Columns, sync_rows: Any, instants: Any) -> Any:
    """Of each instant, the synchronization that was under way then, as a place in `sync_rows`; or -1."""
    if not len(sync_rows) or not len(instants):
        return np.full(len(instants), -1)
    starts = columns.start[sync_rows]
    place = np.searchsorted(starts, instants, side="right") - 1
    ends = starts + np.maximum(columns.length[sync_rows], 0)
    waits = (place >= 0) & (ends[np.maximum(place, 0)] >= instants)
    return np.where(waits, place, -1)
