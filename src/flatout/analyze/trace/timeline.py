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
from flatout.analyze.trace.spans import Spans, both, divided, within, without

_ON_DEVICE = (CODES["kernel"], CODES["gpu_memcpy"], CODES["gpu_memset"])
_CALLS = (CODES["cuda_runtime"], CODES["cuda_driver"])
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
_STEP = re.compile(r"ProfilerStep#\d+")
_LOADER = re.compile(
    r"enumerate\(DataLoader\)|_(Single|Multi)ProcessDataLoaderIter\.__next__|^flatout\.input"
)
SYNCS = re.compile(
    r"^(cuda|hip)(Stream|Device|Event)Synchronize$|^cudaMemcpy$|^cuStreamSynchronize$|^cuCtxSynchronize$"
)


@dataclasses.dataclass(frozen=True)
class Timeline:
    """A trace by its window: rows that count, spans of every part, and the gaps between them."""

    columns: Columns
    start: int
    end: int
    # Milliseconds of the marked steps; empty where none is marked.
    step_ms: list[float]
    # Rows on the device that was busiest, and rows that wait for it.
    device_rows: Any
    sync_rows: Any
    kinds: list[str]
    parts: dict[str, Spans]
    idle: Spans
    # By gap: the row in `sync_rows` that waited when it began, or -1.
    sync_of_gap: Any

    @property
    def length(self) -> int:
        """Nanoseconds."""
        return self.end - self.start

    @property
    def steps(self) -> int:
        """At least one: the whole trace."""
        return max(1, len(self.step_ms))

    def ms_of(self, nanoseconds: float) -> float:
        """Milliseconds of one step."""
        return nanoseconds / 1e6 / self.steps


def timeline(columns: Columns) -> Timeline:
    """Lay it out."""
    marked = rows_of(columns, (CODES["user_annotation"],), _STEP)
    known = columns.length >= 0
    step_ms = _lengths(columns, marked[known[marked]])
    start, end = _window(columns, marked[known[marked]], known)
    rows = np.flatnonzero(np.isin(columns.category, _ON_DEVICE) & known)
    in_window = (columns.start[rows] < end) & (columns.start[rows] + columns.length[rows] > start)
    rows = _of_the_busiest_device(columns, rows[in_window])
    kinds: list[str] = [kind_of(name) for name in columns.names]
    parts, idle = divided(_work(columns, rows, kinds), start, end)
    sync_rows = rows_of(columns, _CALLS, SYNCS)
    sync_rows = sync_rows[np.argsort(columns.start[sync_rows], kind="stable")]
    sync_of_gap = _waiting_at(columns, sync_rows, idle[0])
    waits = within(spans_of(columns, rows_of(columns, _WORK, _LOADER)), start, end)
    if not len(rows):
        parts = host_parts(columns, waits, start, end)
    else:
        parts["input_wait"] = both(idle, waits)
        rest = without(idle, waits)
        after_sync = sync_of_gap[np.searchsorted(idle[0], rest[0], side="right") - 1] >= 0
        has_calls = bool(np.isin(columns.category, _CALLS).any())
        parts["sync_stall"] = rest[0][after_sync], rest[1][after_sync]
        parts["launch_gap" if has_calls else "unattributed"] = rest[0][~after_sync], rest[1][~after_sync]
    return Timeline(columns, start, end, step_ms, rows, sync_rows, kinds, parts, idle, sync_of_gap)


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


def _lengths(columns: Columns, rows: Any) -> list[float]:
    """Milliseconds of rows, in the order of time."""
    order = np.argsort(columns.start[rows], kind="stable")
    return [float(value) / 1e6 for value in columns.length[rows][order]]


def _window(columns: Columns, marked: Any, known: Any) -> tuple[int, int]:
    """From the first marked step to the end of the last; of a trace without marks, all of it."""
    rows = marked if len(marked) else np.flatnonzero(known & (columns.start >= 0))
    if not len(rows):
        return 0, 0
    return int(columns.start[rows].min()), int((columns.start[rows] + columns.length[rows]).max())


def _of_the_busiest_device(columns: Columns, rows: Any) -> Any:
    devices = columns.device[rows]
    if not len(rows) or (devices == devices[0]).all():
        return rows
    busiest = max(np.unique(devices), key=lambda one: columns.length[rows][devices == one].sum())
    return rows[devices == busiest]


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
