"""A ledger through the allocator: the peak, what held it, and where it was reached."""

import dataclasses
from collections.abc import Iterator

from flatout.memory.allocator import CachingAllocator, OutOfMemory, rounded
from flatout.memory.holders import NOBODYS, TAKES, Held, HeldStack, Holders, owners_of
from flatout.records.fit import MemoryAt, MemoryParts
from flatout.records.ledger import LedgerFile

_POINTS = 240


@dataclasses.dataclass(frozen=True)
class Replayed:
    """What the ledger's requests made of a device's memory."""

    allocated_bytes: int
    reserved_bytes: int
    parts: MemoryParts
    # File, line, function and operator of the request that set the peak.
    place: tuple[str, int, str, str] | None
    # That request's number among the events; -1 where there was none.
    peak_event: int
    # Whoever holds it at the peak, the largest first; and the same by the calls that lead there.
    holders: tuple[Held, ...]
    stacks: tuple[HeldStack, ...]
    timeline: tuple[MemoryAt, ...]


def replay(ledger: LedgerFile) -> Replayed:
    """On a device without an end."""
    allocator = CachingAllocator(expandable=ledger.expandable)
    curve = list(enumerate(_through(ledger, allocator)))
    peak, last = allocator.peak_allocated_bytes, -1
    if peak:
        last = next(number for number, allocated in curve if allocated == peak)
    place = ledger.places[ledger.events[last][2]] if last >= 0 else None
    holders = Holders(ledger, last)
    return Replayed(
        allocated_bytes=allocator.peak_allocated_bytes,
        reserved_bytes=allocator.peak_reserved_bytes,
        parts=MemoryParts(**_with_the_rest(holders.by_category(), peak)),
        place=place if place is not None and place[0] else None,
        peak_event=last,
        holders=holders.by_line(),
        stacks=holders.by_stack(),
        timeline=_timeline(ledger, _highest(curve)),
    )


def fits(ledger: LedgerFile, room_bytes: int) -> bool:
    """Whether so much memory is enough, where cached memory is given back."""
    try:
        for _ in _through(ledger, CachingAllocator(room_bytes=room_bytes, expandable=ledger.expandable)):
            pass
    except OutOfMemory:
        return False
    return True


def _through(ledger: LedgerFile, allocator: CachingAllocator) -> Iterator[int]:
    """What is allocated after each event."""
    handles: dict[int, int] = {}
    for event in ledger.events:
        if len(event) == TAKES:
            handles[event[0]] = allocator.allocate(event[1])
        elif event[0] > 0:
            allocator.release(handles.pop(event[0]))
        yield allocator.allocated_bytes


def _with_the_rest(parts: dict[str, int], allocated_bytes: int) -> dict[str, int]:
    """Blocks that were not worth splitting are larger than what was asked for."""
    unsplit = max(0, allocated_bytes - sum(parts.values()))
    return {**parts, NOBODYS: parts.get(NOBODYS, 0) + unsplit}


def _highest(curve: list[tuple[int, int]]) -> dict[int, int]:
    """Event and size where each stretch is highest: the peak must not be lost."""
    stretch = max(1, -(-len(curve) // _POINTS))
    parts = (curve[start : start + stretch] for start in range(0, len(curve), stretch))
    return dict(max(part, key=lambda one: one[1]) for part in parts)


def _timeline(ledger: LedgerFile, chosen: dict[int, int]) -> tuple[MemoryAt, ...]:
    """Who holds what at some events, and how much is allocated then."""
    owners = owners_of(ledger)
    sizes: dict[int, int] = {}
    totals = dict.fromkeys((*ledger.owners, NOBODYS), 0)
    found = []
    for number, event in enumerate(ledger.events):
        if event[0] > 0:
            takes = len(event) == TAKES
            size = sizes[event[0]] = rounded(event[1]) if takes else -sizes[event[0]]
            totals[owners.get(event[0], NOBODYS)] += size
        if number in chosen:
            parts = _with_the_rest(totals, chosen[number])
            found.append(MemoryAt(event=number, allocated_bytes=chosen[number], parts=parts))
    return tuple(found)
