"""A ledger through the allocator: who holds what at the peak, and where that is."""

import dataclasses

from flatout.memory.allocator import MIB
from flatout.memory.replaying import fits, replay
from flatout.records.ledger import LedgerFile

PLACES = [("model.py", 3, "Model.__init__", ""), ("train.py", 20, "main", "aten::mm")]


def ledger(*events: list[int], **owners: list[int]) -> LedgerFile:
    return LedgerFile(events=list(events), places=PLACES, owners=owners, updates=2)


def test_the_peak_and_who_holds_it() -> None:
    found = replay(
        ledger(
            [1, 30 * MIB, 0],
            [2, 16 * MIB, 1],
            [3, 14 * MIB, 1],  # the peak
            [2],
            [-1],
            [4, 12 * MIB, 1],
            parameters=[1],
            gradients=[3],
        )
    )
    assert found.allocated_bytes == 60 * MIB
    assert found.reserved_bytes == 60 * MIB
    assert (found.parts.parameters, found.parts.gradients, found.parts.activations) == (
        30 * MIB,
        14 * MIB,
        16 * MIB,
    )
    assert found.place == ("train.py", 20, "main", "aten::mm")
    assert found.peak_event == 2
    assert max(point.allocated_bytes for point in found.timeline) == 60 * MIB


def test_what_is_not_split_off_counts_as_what_lives_for_a_step() -> None:
    found = replay(ledger([1, 11 * MIB + 100, 0], parameters=[1]))
    assert found.allocated_bytes == 12 * MIB
    assert found.parts.parameters + found.parts.activations == 12 * MIB


def test_a_device_with_an_end() -> None:
    events = ledger([1, 30 * MIB, 0], [1], [2, 36 * MIB, 0])
    assert replay(events).reserved_bytes == 66 * MIB
    assert fits(events, 40 * MIB)
    assert not fits(events, 34 * MIB)


def test_segments_that_grow_serve_what_fragments_could_not() -> None:
    events = ledger(*([n, 15 * MIB, 0] for n in range(1, 5)), [1], [2], [3], [4], [5, 60 * MIB, 0])
    assert replay(events).reserved_bytes == (4 * 16 + 60) * MIB
    growing = dataclasses.replace(events, expandable=True)
    assert replay(growing).reserved_bytes == 60 * MIB
    assert fits(growing, 60 * MIB)
    assert not fits(events, 60 * MIB)


def test_nothing_was_asked_for() -> None:
    found = replay(ledger([-1], [-2]))
    assert (found.allocated_bytes, found.place, found.peak_event) == (0, None, -1)
    assert (found.holders, found.stacks) == ((), ())


def test_the_timeline_knows_who_holds_what_and_where_updates_end() -> None:
    events = ledger(
        [1, 30 * MIB, 0],
        [2, 16 * MIB, 1],
        [2],
        [-1],
        [3, 14 * MIB, 1],
        [-2],
        parameters=[1],
        gradients=[3],
    )
    assert events.update_events == (3, 5)
    points = replay(events).timeline
    assert [point.event for point in points] == [0, 1, 2, 3, 4, 5]
    held = [
        tuple(point.parts[name] // MIB for name in ("parameters", "gradients", "activations"))
        for point in points
    ]
    assert held == [(30, 0, 0), (30, 0, 16), (30, 0, 0), (30, 0, 0), (30, 14, 0), (30, 14, 0)]
    assert all(sum(point.parts.values()) == point.allocated_bytes for point in points)
