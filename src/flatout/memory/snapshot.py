"""An imagined job's memory as torch's own snapshots have it, for the viewer at https://pytorch.org/memory_viz.

A snapshot holds the allocator's history and its state at the end of it, from which the viewer works its way
back: both end at the peak.
"""

import pickle
from pathlib import Path
from typing import Any

from flatout.memory.allocator import CachingAllocator, Segment
from flatout.memory.holders import NOBODYS, TAKES, owners_of
from flatout.records.atomic import write_atomically
from flatout.records.ledger import LedgerFile

# The latest that the viewer reads.
_PROTOCOL = 4
# Segments are placed below this, as a driver would; a number that JavaScript holds exactly.
_TOP_ADDRESS = 0x7F00_0000_0000

Frames = list[dict[str, Any]]


def write_snapshot(ledger: LedgerFile, last: int, path: Path) -> None:
    """Of the events up to `last`, into a file."""
    write_atomically(path, pickle.dumps(snapshot(ledger, last), protocol=_PROTOCOL))


def snapshot(ledger: LedgerFile, last: int) -> dict[str, Any]:
    """What `torch.cuda.memory._snapshot()` would give after event number `last`."""
    allocator = CachingAllocator()
    owners = owners_of(ledger)
    frames = [_frames_of(ledger, place) for place in range(len(ledger.places))]
    handles: dict[int, int] = {}
    # By number, the request as the trace has it.
    requests: dict[int, dict[str, Any]] = {}
    trace: list[dict[str, Any]] = []
    for event in ledger.events[: last + 1]:
        number = event[0]
        if len(event) == TAKES:
            reserved = allocator.reserved_bytes
            handles[number] = allocator.allocate(event[1])
            about = {
                "addr": _TOP_ADDRESS + allocator.address_of(handles[number]),
                "size": event[1],
                "stream": 0,
                "frames": frames[event[2]],
            }
            if allocator.reserved_bytes > reserved:  # the request lies at the beginning of a new segment
                trace.append(
                    {"action": "segment_alloc", **about, "size": allocator.reserved_bytes - reserved}
                )
            requests[number] = about
            trace.append({"action": "alloc", **about, "category": owners.get(number, NOBODYS)})
        elif number > 0:
            allocator.release(handles.pop(number))
            about = requests.pop(number)
            trace += [{"action": "free_requested", **about}, {"action": "free_completed", **about}]
    # Where categories are named, the viewer needs one for what is in none of them.
    trace.append({"action": "snapshot", "addr": 0, "size": 0, "stream": 0, "category": "unknown"})
    by_address = {about["addr"]: about for about in requests.values()}
    return {
        "segments": [_segment(segment, by_address) for segment in allocator.segments()],
        "device_traces": [trace],
    }


def _frames_of(ledger: LedgerFile, place: int) -> Frames:
    """The innermost first, as torch has them: the operator, then the calls that led to it."""
    operator = ledger.places[place][3]
    calls = [
        {"filename": file, "line": line, "name": function}
        for file, line, function in reversed(ledger.calls_to(place))
    ]
    return [{"filename": "torch", "line": 0, "name": operator}, *calls] if operator else calls


def _segment(segment: Segment, requests: dict[int, dict[str, Any]]) -> dict[str, Any]:
    blocks = []
    for block in segment.blocks:
        about = requests.get(_TOP_ADDRESS + block.address)
        blocks.append(
            {
                "address": _TOP_ADDRESS + block.address,
                "size": block.size,
                "requested_size": about["size"] if about is not None else 0,
                "state": "active_allocated" if about is not None else "inactive",
                "frames": about["frames"] if about is not None else [],
            }
        )
    held = [block for block in blocks if block["state"] == "active_allocated"]
    return {
        "device": 0,
        "address": _TOP_ADDRESS + segment.address,
        "total_size": segment.size,
        "allocated_size": sum(block["size"] for block in held),
        "active_size": sum(block["size"] for block in held),
        "requested_size": sum(block["requested_size"] for block in held),
        "stream": 0,
        "segment_type": "small" if segment.is_small else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }
