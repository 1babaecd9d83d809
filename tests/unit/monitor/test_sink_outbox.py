"""Between those who log and a sink: nobody waits, what is lost is counted, and a bad sink harms no other."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from flatout.monitor.sinks.outbox import Outbox, close_all
from flatout.monitor.sinks.protocol import WENT_WELL, Ending, ending_of
from flatout.records.points import Point
from tests.detached import until

_PATIENCE_S = 60.0


class Kept:
    """A sink that keeps what it gets, once it is let."""

    note = ""

    def __init__(self, may_go_on: threading.Event | None = None) -> None:
        self.points: list[Point] = []
        self.closed = 0
        self.ending: Ending | None = None
        self.entered = threading.Event()
        self._may_go_on = may_go_on

    def write(self, points: Sequence[Point]) -> None:
        self.entered.set()
        if self._may_go_on is not None:
            self._may_go_on.wait()
        self.points += points

    def close(self, ending: Ending = WENT_WELL, /) -> None:
        self.closed += 1
        self.ending = ending

    def steps(self) -> list[int]:
        return [point.step for point in self.points]


@pytest.fixture
def may_go_on() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def said() -> list[str]:
    return []


def point(step: int) -> Point:
    return Point(step, 0.0, {"loss": float(step)})


def raising(error: BaseException) -> Callable[..., None]:
    def call(*_: object) -> None:
        raise error

    return call


def test_everything_arrives_in_order_and_the_sink_is_closed_once(said: list[str]) -> None:
    sink = Kept()
    box = Outbox("kept", lambda: sink, said.append)
    for step in range(2000):
        box.put(point(step))
    assert box.close(_PATIENCE_S)
    assert sink.steps() == list(range(2000))
    assert (box.delivered, box.dropped, sink.closed, said) == (2000, 0, 1, [])


def test_a_sink_is_told_how_the_job_ended(said: list[str]) -> None:
    for exit_code, signal, ending in (
        (0, None, Ending()),
        (3, None, Ending(3)),
        (None, 9, Ending(137, was_killed=True)),
        (None, None, Ending(143, was_killed=True)),
    ):
        sink = Kept()
        box = Outbox("kept", lambda sink=sink: sink, said.append)  # type: ignore[misc]
        box.put(point(1))
        close_all([box], _PATIENCE_S, ending_of(exit_code, signal))
        assert sink.ending == ending


def test_a_sink_that_blocks_for_ever_holds_nobody_up(said: list[str], may_go_on: threading.Event) -> None:
    stuck, good = Kept(may_go_on), Kept()
    boxes = [
        Outbox("stuck", lambda: stuck, said.append, points_at_most=100),
        Outbox("good", lambda: good, said.append),
    ]
    for step in range(3):
        for box in boxes:
            box.put(point(step))
    assert stuck.entered.wait(_PATIENCE_S)
    for step in range(3, 1000):
        for box in boxes:
            box.put(point(step))
    assert boxes[1].flush(_PATIENCE_S)
    assert not boxes[0].flush(0.02)
    close_all(boxes, 0.3)
    assert good.steps() == list(range(1000))
    until(lambda: good.closed)  # on a busy machine its own thread may need longer than that
    assert good.closed == 1
    assert boxes[0].failure
    assert any("stuck" in text and "lost" in text for text in said)


def test_a_full_queue_drops_the_oldest_counts_them_and_says_so_once(
    said: list[str], may_go_on: threading.Event
) -> None:
    sink = Kept(may_go_on)
    box = Outbox("slow", lambda: sink, said.append, points_at_most=10)
    box.put(point(0))
    assert sink.entered.wait(_PATIENCE_S)
    for step in range(1, 31):
        box.put(point(step))
    may_go_on.set()
    assert box.close(_PATIENCE_S)
    assert sink.steps() == [0, *range(21, 31)]
    assert box.dropped == 20
    assert len(said) == 1


@pytest.mark.parametrize("error", [ValueError("no such\nproject"), SystemExit(1), KeyboardInterrupt()])
def test_a_sink_that_raises_is_turned_off_with_its_reason(said: list[str], error: BaseException) -> None:
    sink = Kept()
    sink.write = raising(error)  # type: ignore[method-assign]
    box = Outbox("bad", lambda: sink, said.append)
    box.put(point(1))
    assert not box.flush(_PATIENCE_S)
    box.put(point(2))
    assert not box.close(_PATIENCE_S)
    assert type(error).__name__ in box.failure
    assert "\n" not in box.failure
    assert box.dropped == 2, "the one whose write failed, too"
    assert sink.closed == 1
    assert len(said) == 1


def test_a_sink_that_cannot_be_opened_is_turned_off(said: list[str]) -> None:
    box = Outbox("none", raising(OSError("no route to host")), said.append)
    box.put(point(1))
    assert not box.flush(_PATIENCE_S)
    assert "no route to host" in said[0]


def test_what_a_sink_notes_as_it_is_opened_is_told(said: list[str]) -> None:
    sink = Kept()
    sink.note = "kept offline"
    box = Outbox("it", lambda: sink, said.append)
    box.put(point(1))
    assert box.close(_PATIENCE_S)
    assert said == ["it: kept offline"]


def test_points_wait_while_a_fork_goes_on(said: list[str]) -> None:
    sink = Kept()
    box = Outbox("kept", lambda: sink, said.append)
    box.put(point(1))
    assert box.flush(_PATIENCE_S)
    box.pause()
    assert not [one for one in threading.enumerate() if one.name == "flatout-kept"]
    box.put(point(2))
    time.sleep(0.02)
    assert sink.steps() == [1]
    box.resume()
    assert box.close(_PATIENCE_S)
    assert sink.steps() == [1, 2]
    assert sink.closed == 1


def test_a_resume_right_after_the_thread_saw_the_pause_leaves_the_sink_open(said: list[str]) -> None:
    sink = Kept()
    box = Outbox("kept", lambda: sink, said.append)
    take = box._take

    def taken() -> list[Point] | None:
        found = take()
        if found is None:  # it is on its way out, and has not gone yet
            box.resume()
        return found

    box._take = taken  # type: ignore[method-assign]
    box.put(point(1))
    assert box.flush(_PATIENCE_S)
    box.pause()
    box.put(point(2))
    assert box.flush(_PATIENCE_S)
    assert (sink.steps(), sink.closed) == ([1, 2], 0)
    assert box.close(_PATIENCE_S)
    assert sink.closed == 1


def test_a_box_that_nothing_came_to_opens_no_sink(said: list[str]) -> None:
    box = Outbox("never", raising(AssertionError("opened")), said.append)
    assert box.flush(1.0)
    assert box.close(1.0)
    assert said == []
