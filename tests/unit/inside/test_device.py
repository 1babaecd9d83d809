"""The device's clock reads events that were passed, waits for none, and asks nothing during a capture."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.inside import device as module
from flatout.inside.deferred import Deferred
from flatout.inside.device import DeviceClock, room_for_a_mark
from tests.fakes.cuda import FakeCuda, FakeNumber


class Watched:
    """A clock on a fake device, and what it logged."""

    def __init__(self) -> None:
        self.cuda = FakeCuda()
        self.logged: list[tuple[Any, ...]] = []
        self.clock = DeviceClock(self.cuda.torch, self.cuda.device, self.logged.append)
        self.deferred = Deferred(self.cuda.torch)
        self.update = 0

    def step(
        self,
        ms: float = 0.0,
        *,
        marks: list[tuple[str, Any]] | None = None,
        losses: tuple[float, ...] = (),
        opens_next: bool = True,
    ) -> None:
        """Queue a step's work, and close it."""
        self.update += 1
        self.cuda.work(ms)
        slots = [self.deferred.value_of(FakeNumber(loss)) for loss in losses]
        self.clock.close(self.update, marks or [], slots, [], opens_next=opens_next)

    def times(self) -> dict[int, float | None]:
        return {event[1]: event[2] for event in self.logged}


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_nothing_is_logged_before_the_device_has_passed(watched: Watched) -> None:
    for _ in range(20):
        watched.step(5.0)
    assert watched.logged == []
    watched.cuda.now_ms = 52.0  # in the middle of the eleventh step
    watched.step(5.0)
    assert list(watched.times()) == list(range(1, 11))
    watched.cuda.catch_up()
    watched.clock.drain()
    assert list(watched.times()) == list(range(1, 22))


def test_a_step_lasts_from_boundary_to_boundary_and_the_first_has_none(watched: Watched) -> None:
    for ms in (1.0, 2.0, 3.0, 4.0):
        watched.step(ms)
    watched.cuda.catch_up()
    watched.clock.drain()
    assert watched.times() == {1: None, 2: 2.0, 3: 3.0, 4: 4.0}
    assert all(event[6] == "" for event in watched.logged)


def test_a_step_after_one_that_opens_none_has_no_time(watched: Watched) -> None:
    watched.step(1.0, opens_next=False)
    for ms in (2.0, 3.0):
        watched.step(ms)
    watched.cuda.catch_up()
    watched.clock.drain()
    assert watched.times() == {1: None, 2: None, 3: 3.0}


def test_after_steps_that_nobody_looked_at_a_step_can_be_opened(watched: Watched) -> None:
    watched.step(1.0)
    watched.step(2.0, opens_next=False)
    watched.cuda.work(50.0)
    watched.update = 9
    watched.clock.open()
    watched.step(3.0, opens_next=False)
    watched.cuda.catch_up()
    watched.clock.drain()
    assert watched.times() == {1: None, 2: 2.0, 10: 3.0}


def test_events_of_steps_that_stand_alone_are_used_again(watched: Watched) -> None:
    for _ in range(100):
        watched.clock.open()
        watched.step(1.0, marks=[("forward", watched.clock.mark())], opens_next=False)
        watched.cuda.catch_up()
        watched.clock.drain()
    assert len(watched.clock._pool) <= 4


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.sampled_from(["forward", "loss", "copy", "between"]), st.integers(0, 9))))
def test_the_parts_of_a_step_sum_to_it(parts: list[tuple[str, int]]) -> None:
    watched = Watched()
    watched.step()
    marks = []
    watched.cuda.work(1.0)
    for kind, ms in parts:
        marks.append((kind, watched.clock.mark()))
        watched.cuda.work(float(ms))
    watched.step(2.0, marks=marks)
    watched.cuda.catch_up()
    watched.clock.drain()
    _, _, took, found, *_ = watched.logged[-1]
    assert took == 3.0 + sum(ms for _, ms in parts)
    if parts:
        assert sum(found.values()) == pytest.approx(took)
        for kind in {kind for kind, _ in parts}:
            own = sum(ms for name, ms in parts if name == kind)
            own += 2.0 if parts[-1][0] == kind else 0.0
            own += 1.0 if kind == "between" else 0.0
            assert found[kind] == pytest.approx(own)


def test_copies_on_a_stream_of_their_own_are_no_part_of_the_step(watched: Watched) -> None:
    watched.step()
    marks = [("forward", watched.clock.mark())]
    watched.cuda.work(5.0)
    with watched.cuda.on_stream(9):  # a prefetcher: the side stream is still copying when the step is done
        marks.append(("copy", watched.clock.mark()))
        watched.cuda.work(500.0)
        marks.append(("between", watched.clock.mark()))
    marks.append(("backward", watched.clock.mark()))
    watched.step(10.0, marks=marks)
    watched.cuda.now_ms = 20.0
    watched.clock._look()
    assert watched.logged[-1][2:4] == (15.0, {"between": 0.0, "forward": 5.0, "backward": 10.0})


def test_a_loop_on_a_stream_of_its_own_is_seen_like_any_other(watched: Watched) -> None:
    with watched.cuda.on_stream(9):
        watched.step()
        marks = [("forward", watched.clock.mark())]
        watched.step(3.0, marks=marks)
        watched.cuda.catch_up()
        watched.clock.drain()
    assert watched.logged[-1][2:4] == (3.0, {"between": 0.0, "forward": 3.0})


def test_losses_come_with_the_step_once_it_was_passed(watched: Watched) -> None:
    watched.step(1.0, losses=(0.5,))
    watched.step(1.0, losses=(0.25, 0.125))
    watched.cuda.catch_up()
    watched.clock.drain()
    assert [event[4] for event in watched.logged] == [[0.5], [0.25, 0.125]]


def test_nothing_is_asked_of_the_device_while_a_graph_is_being_captured(watched: Watched) -> None:
    for _ in range(7):
        watched.step(1.0)
    with watched.cuda.capture():
        assert watched.clock.event() is None
        assert watched.clock.mark() is None
        watched.step(1.0, marks=[("forward", None)])  # the eighth, at which it would look
        watched.step(1.0)
    watched.step(1.0)
    watched.step(1.0)
    watched.cuda.catch_up()
    watched.clock.drain()
    times = watched.times()
    assert list(times) == list(range(1, 12))
    assert [times[update] for update in (7, 8, 9, 10, 11)] == [1.0, None, None, None, 1.0]
    reasons = {event[1]: event[6] for event in watched.logged if event[6]}
    assert reasons == dict.fromkeys((8, 9), "a graph was being captured")


def test_a_device_that_falls_too_far_behind_loses_the_oldest_steps(watched: Watched) -> None:
    for _ in range(module._PENDING_AT_MOST + 20):
        watched.step(1.0, losses=(0.5,))
    given_up = [event for event in watched.logged if event[6]]
    assert given_up
    assert {event[6] for event in given_up} == {"the device was too far behind"}
    assert all(event[2] is None and event[4] == [None] for event in given_up)
    assert [event[1] for event in given_up] == list(range(1, len(given_up) + 1))
    watched.cuda.catch_up()
    watched.clock.drain()
    assert list(watched.times()) == list(range(1, watched.update + 1))


def test_at_the_end_the_device_gets_a_moment_and_no_more(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LAST_CHANCE_S", 0.05)
    watched.step(1.0, losses=(0.5,))
    watched.step(1.0, losses=(0.5,))
    watched.cuda.now_ms = 1.5  # the device hangs in the second step
    watched.clock.drain()
    [first, second] = watched.logged
    assert (first[2], first[4], first[6]) == (None, [0.5], "")
    assert (second[2], second[4], second[6]) == (None, [None], "the job ended before the device got there")


def test_events_are_used_again(watched: Watched) -> None:
    watched.step()
    for _ in range(200):
        watched.step(1.0, marks=[("forward", watched.clock.mark())])
        watched.cuda.catch_up()
    assert len(watched.cuda.events) < 40
    assert sum(event.records for event in watched.cuda.events) == 401


def test_some_early_steps_and_fewer_later_ones_are_looked_at_in_detail() -> None:
    detailed = [update for update in range(1, 400) if DeviceClock.wants_detail(update)]
    early = [update for update in detailed if update <= 40]
    late = [update for update in detailed if update > 200]
    assert len(early) >= 8
    assert 0 < len(late) <= 200 / 12


def test_marks_have_an_end() -> None:
    marks: list[tuple[str, Any]] = []
    while room_for_a_mark(marks):
        marks.append(("copy", None))
    assert len(marks) == module._MARKS_AT_MOST
