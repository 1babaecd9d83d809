"""The model of torch's caching allocator: by its rules, and by what must hold whatever is asked."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.memory.allocator import MIB, CachingAllocator, OutOfMemory, rounded, segment_size

sizes = st.integers(0, 64 * MIB)
# A request, or the release of one of those that are held.
actions = st.lists(st.one_of(sizes, st.tuples(st.integers(0, 1000))), max_size=120)


@pytest.mark.parametrize(
    ("asked", "taken", "reserved"),
    [
        (0, 512, 2 * MIB),
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB, 11 * MIB, 12 * MIB),
    ],
)
def test_one_request(asked: int, taken: int, reserved: int) -> None:
    allocator = CachingAllocator()
    allocator.allocate(asked)
    assert rounded(asked) == taken
    assert segment_size(taken) == reserved
    assert allocator.reserved_bytes == reserved
    # Up to a megabyte that is left over of a segment for large ones is not split off.
    left_over = reserved - taken
    assert allocator.allocated_bytes == (taken if taken <= MIB or left_over > MIB else reserved)


def test_the_smallest_free_block_serves_and_neighbours_become_one() -> None:
    allocator = CachingAllocator()
    held = [allocator.allocate(size * MIB) for size in (30, 12, 50)]
    assert allocator.reserved_bytes == 92 * MIB
    for handle in held:
        allocator.release(handle)
    small = allocator.allocate(11 * MIB)  # from the 12, of which 1 is left and not split off
    assert allocator.allocated_bytes == 12 * MIB
    parts = [allocator.allocate(10 * MIB) for _ in range(3)]  # all of the 30
    assert allocator.reserved_bytes == 92 * MIB
    for handle in (small, *parts):
        allocator.release(handle)
    allocator.allocate(30 * MIB)
    assert allocator.reserved_bytes == 92 * MIB


def test_segments_are_told_as_they_are_split_and_gone_once_given_back() -> None:
    allocator = CachingAllocator()
    first, second = allocator.allocate(5 * MIB), allocator.allocate(4 * MIB)
    allocator.allocate(100)
    small, middling = allocator.segments()
    assert (small.is_small, small.size, [block.size for block in small.blocks]) == (
        True,
        2 * MIB,
        [512, 2 * MIB - 512],
    )
    assert (middling.size, [block.size // MIB for block in middling.blocks]) == (20 * MIB, [5, 4, 11])
    assert allocator.address_of(first) == middling.address
    assert allocator.address_of(second) == middling.address + 5 * MIB
    allocator.release(first)
    allocator.release(second)
    allocator.give_back()
    assert [segment.size for segment in allocator.segments()] == [2 * MIB]


def test_fragments_are_reserved_and_of_no_use() -> None:
    allocator = CachingAllocator()
    held = [allocator.allocate(5 * MIB) for _ in range(8)]  # four in a segment of 20
    for handle in held[::2]:
        allocator.release(handle)
    assert allocator.reserved_bytes - allocator.allocated_bytes == 20 * MIB
    allocator.allocate(12 * MIB)
    assert allocator.reserved_bytes == 52 * MIB


def test_unused_segments_go_back_before_a_request_fails() -> None:
    allocator = CachingAllocator(room_bytes=40 * MIB)
    allocator.release(allocator.allocate(30 * MIB))
    allocator.allocate(36 * MIB)
    assert allocator.reserved_bytes == 36 * MIB
    with pytest.raises(OutOfMemory) as raised:
        allocator.allocate(12 * MIB)
    assert raised.value.asked_bytes == 12 * MIB
    assert raised.value.allocated_bytes == 36 * MIB
    assert allocator.reserved_bytes == 36 * MIB


def test_segments_that_expand_leave_no_fragments() -> None:
    allocator = CachingAllocator(expandable=True)
    held = [allocator.allocate(5 * MIB) for _ in range(8)]
    assert allocator.reserved_bytes == 40 * MIB
    for handle in held[4:]:
        allocator.release(handle)
    allocator.allocate(24 * MIB)  # the 20 that are free at the end, and 4 more: one page
    assert allocator.reserved_bytes == 60 * MIB
    assert allocator.allocated_bytes == 44 * MIB


@given(actions=actions, expandable=st.booleans(), room=st.none() | st.integers(1, 400))
@settings(max_examples=300, deadline=None)
def test_whatever_is_asked(actions: list[int | tuple[int]], expandable: bool, room: int | None) -> None:
    room_bytes = room * MIB if room is not None else None
    allocator = CachingAllocator(room_bytes=room_bytes, expandable=expandable)
    held: dict[int, int] = {}
    for action in actions:
        if isinstance(action, tuple):
            if held:
                handle = sorted(held)[action[0] % len(held)]
                del held[handle]
                allocator.release(handle)
        else:
            before = allocator.allocated_bytes
            try:
                handle = allocator.allocate(action)
            except OutOfMemory:
                assert room_bytes is not None
                assert allocator.allocated_bytes == before
                continue
            held[handle] = action
        assert sum(map(rounded, held.values())) <= allocator.allocated_bytes <= allocator.reserved_bytes
        assert allocator.reserved_bytes <= allocator.peak_reserved_bytes
        assert room_bytes is None or allocator.reserved_bytes <= room_bytes
        assert allocator.reserved_bytes % (2 * MIB) == 0
    for handle in held:
        allocator.release(handle)
    assert allocator.allocated_bytes == 0
    allocator.give_back()
    assert allocator.reserved_bytes == 0


RECORDED = Path(__file__).parents[2] / "recorded" / "allocator_h200"


@pytest.mark.parametrize(
    "path", sorted(RECORDED.glob("*.json.gz")), ids=lambda path: path.name.partition(".")[0]
)
def test_what_an_h200_was_asked_for_reserves_as_much_here(path: Path) -> None:
    recorded = json.loads(gzip.decompress(path.read_bytes()))
    allocator = CachingAllocator()
    handles: list[int] = []
    for event in recorded["events"]:
        if event >= 0:
            handles.append(allocator.allocate(event))
        else:
            allocator.release(handles[-event - 1])

    assert allocator.peak_allocated_bytes == pytest.approx(recorded["allocated_bytes"], rel=0.0025)
    assert allocator.peak_reserved_bytes == pytest.approx(recorded["reserved_bytes"], rel=0.0025)
