"""How much was allocated over the recorded steps of a trial."""

import gzip
from pathlib import Path
from typing import Any

import msgspec

from flatout.records.profile import MemoryPoint
from flatout.records.session import RANKS_FOLDER

_POINTS = 240
_LARGEST_BYTES = 256 << 20
_ON_GPU = 1


class _Allocation(msgspec.Struct):
    total: int = msgspec.field(name="Total Allocated", default=-1)
    kind: int = msgspec.field(name="Device Type", default=-1)


class _Instant(msgspec.Struct):
    ts: float = 0.0
    name: str = ""
    args: Any = None


class _File(msgspec.Struct):
    events: list[_Instant] = msgspec.field(name="traceEvents", default_factory=list)


def memory_timeline(trial: Path, *, on_gpu: bool) -> tuple[MemoryPoint, ...]:
    """How much was allocated over the recorded steps of the first rank, at a few hundred instants."""
    paths = sorted((trial / RANKS_FOLDER).glob("*/rank*-details.pt.trace.json.gz"))
    if not paths:
        return ()
    try:
        with gzip.open(paths[0]) as file:
            text = file.read(_LARGEST_BYTES + 1)
        if len(text) > _LARGEST_BYTES:
            return ()
        events = msgspec.json.decode(text, type=_File, strict=False).events
    except (OSError, EOFError, msgspec.MsgspecError, ValueError):
        return ()
    points = []
    for event in events:
        if event.name == "[memory]":
            about = msgspec.convert(event.args, _Allocation, strict=False)
            if (about.kind == _ON_GPU) == on_gpu and about.total >= 0:
                points.append((event.ts / 1000, about.total))
    return _thinned(sorted(points))


def _thinned(points: list[tuple[float, int]]) -> tuple[MemoryPoint, ...]:
    """The highest and the lowest of each stretch: peaks must not be lost."""
    if not points:
        return ()
    begin, stretch = points[0][0], max(1, -(-2 * len(points) // _POINTS))
    kept: list[tuple[float, int]] = []
    for start in range(0, len(points), stretch):
        part = points[start : start + stretch]
        kept += sorted({min(part, key=lambda one: one[1]), max(part, key=lambda one: one[1])})
    return tuple(MemoryPoint(ms=ms - begin, allocated_bytes=size) for ms, size in kept)
