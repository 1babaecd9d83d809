"""A ledger through the allocator: the peak, what held it, and where it was reached."""

import dataclasses

from flatout.memory.allocator import CachingAllocator, rounded
from flatout.records.fit import MemoryAt, MemoryParts
from flatout.records.ledger import LedgerFile

_POINTS = 240
# What an event has that takes memory: number, bytes, place.
_TAKES = 3


@dataclasses.dataclass(frozen=True)
class Held:
    """What one place of the source holds at the peak."""

    place: tuple[str, int, str, str]
    category: str
    size_bytes: int
    count: int


@dataclasses.dataclass(frozen=True)
class Replayed:
    """What the ledger's requests made of a device's memory."""

    allocated_bytes: int
    reserved_bytes: int
    parts: MemoryParts
    # File, line, function and operator of the request that set the peak.
    place: tuple[str, int, str, str] | None
    # Whoever holds it at the peak, the largest first.
    holders: tuple[Held, ...]
    timeline: tuple[MemoryAt, ...]
    # How often cached memory had to be given back; only on a device with an end.
    retries: int


def replay(ledger: LedgerFile, *, room_bytes: int | None = None, expandable: bool = False) -> Replayed:
    """Raises OutOfMemory where `room_bytes` are not enough."""
    allocator = CachingAllocator(room_bytes=room_bytes, expandable=expandable)
    handles: dict[int, int] = {}
    peak, last = -1, -1
    curve = []
    for number, event in enumerate(ledger.events):
        if len(event) == _TAKES:
            handles[event[0]] = allocator.allocate(event[1])
            if allocator.allocated_bytes > peak:
                peak, last = allocator.allocated_bytes, number
        elif event[0] > 0:
            allocator.release(handles.pop(event[0]))
        curve.append((number, allocator.allocated_bytes))
    place = ledger.places[ledger.events[last][2]] if last >= 0 else None
    held = _held_at(ledger, last)
    return Replayed(
        allocated_bytes=allocator.peak_allocated_bytes,
        reserved_bytes=allocator.peak_reserved_bytes,
        parts=_parts(ledger, held, peak),
        holders=_holders(ledger, held, last),
        place=place if place is not None and place[0] else None,
        timeline=_thinned(curve),
        retries=allocator.retries,
    )


def _held_at(ledger: LedgerFile, last: int) -> dict[int, int]:
    """What is held when that event is over, by number."""
    held: dict[int, int] = {}
    for event in ledger.events[: last + 1]:
        if len(event) == _TAKES:
            held[event[0]] = rounded(event[1])
        elif event[0] > 0:
            del held[event[0]]
    return held


def _parts(ledger: LedgerFile, held: dict[int, int], peak: int) -> MemoryParts:
    """Whoever owns it; what nobody owns lives for a step, or for less."""
    owners = {number: name for name, numbers in ledger.owners.items() for number in numbers}
    totals: dict[str, int] = {}
    for number, size in held.items():
        name = owners.get(number, "activations")
        totals[name] = totals.get(name, 0) + size
    # Blocks that were not worth splitting are larger than what was asked for.
    totals["activations"] = totals.get("activations", 0) + max(0, peak - sum(held.values()))
    return MemoryParts(**totals)


def _holders(ledger: LedgerFile, held: dict[int, int], last: int) -> tuple[Held, ...]:
    owners = {number: name for name, numbers in ledger.owners.items() for number in numbers}
    places = {event[0]: event[2] for event in ledger.events[: last + 1] if len(event) == _TAKES}
    sizes: dict[tuple[int, str], list[int]] = {}
    for number, size in held.items():
        sizes.setdefault((places[number], owners.get(number, "activations")), []).append(size)
    found = [
        Held(ledger.places[place], category, sum(some), len(some))
        for (place, category), some in sizes.items()
    ]
    return tuple(sorted(found, key=lambda one: -one.size_bytes))


def _thinned(curve: list[tuple[int, int]]) -> tuple[MemoryAt, ...]:
    """The highest of each stretch: the peak must not be lost."""
    stretch = max(1, -(-len(curve) // _POINTS))
    parts = (curve[start : start + stretch] for start in range(0, len(curve), stretch))
    highest = (max(part, key=lambda one: one[1]) for part in parts)
    return tuple(MemoryAt(event=number, allocated_bytes=size) for number, size in highest)
