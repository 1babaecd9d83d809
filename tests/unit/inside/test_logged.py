"""Numbers are taken when they are logged and read when the device has passed them; nobody waits."""

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from flatout.inside.logged import LoggedCalls, Refused
from flatout.records.points import Point
from tests.fakes.cuda import FakeCuda, FakeNumber

_PATIENCE_S = 60.0


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.002)


def threads() -> set[threading.Thread]:
    """Also those that other tests have left in this process."""
    return {one for one in threading.enumerate() if one.name == "flatout-log"}


class Logging:
    """A log on a fake device, whose thread may ask it or not."""

    def __init__(self, *, thread_asks: bool) -> None:
        self.cuda = FakeCuda()
        self.points: list[Point] = []
        self.said: list[str] = []
        self.calls = LoggedCalls(
            self.points.append,
            self.said.append,
            find_torch=lambda: self.cuda.torch,
            relax=lambda _torch, _device: thread_asks,
        )

    def values(self, name: str = "loss") -> list[float]:
        return [point.values[name] for point in self.points if name in point.values]


@pytest.fixture
def logging() -> Any:
    made = Logging(thread_asks=True)
    yield made
    made.calls.pause()


@pytest.fixture
def asking_oneself() -> Any:
    made = Logging(thread_asks=False)
    yield made
    made.calls.pause()


def test_a_number_on_a_device_is_read_by_the_thread_once_the_device_has_passed_it(logging: Logging) -> None:
    logging.cuda.work(10)
    logging.calls.add(1, {"loss": FakeNumber(0.5)})
    time.sleep(0.05)
    assert logging.points == []
    logging.cuda.catch_up()
    until(lambda: logging.values() == [0.5])
    assert logging.points[0].step == 1


def test_the_value_is_that_of_the_call_whatever_becomes_of_the_tensor(logging: Logging) -> None:
    logging.cuda.work(10)
    loss = FakeNumber(0.5)
    logging.calls.add(1, {"loss": loss})
    loss.value = 99.0
    logging.cuda.catch_up()
    until(lambda: logging.values() == [0.5])


def test_calls_come_out_in_their_order_also_those_that_need_no_device(logging: Logging) -> None:
    logging.cuda.work(10)
    for step in range(20):
        logging.calls.add(step, {"loss": FakeNumber(float(step)) if step % 2 else float(step)})
    logging.cuda.catch_up()
    until(lambda: len(logging.points) == 20)
    assert logging.values() == [float(step) for step in range(20)]


def test_where_the_thread_may_not_ask_the_next_call_does(asking_oneself: Logging) -> None:
    cuda, calls = asking_oneself.cuda, asking_oneself.calls
    cuda.work(10)
    calls.add(1, {"loss": FakeNumber(1.0)})
    cuda.catch_up()
    time.sleep(0.05)
    assert asking_oneself.points == []
    cuda.work(10)
    calls.add(2, {"loss": FakeNumber(2.0)})
    assert asking_oneself.values() == [1.0]
    cuda.catch_up()
    assert calls.flush(_PATIENCE_S)
    assert asking_oneself.values() == [1.0, 2.0]


def test_nothing_touches_the_device_while_a_graph_is_being_captured(asking_oneself: Logging) -> None:
    cuda, calls = asking_oneself.cuda, asking_oneself.calls
    cuda.work(10)
    calls.add(1, {"loss": FakeNumber(1.0)})
    cuda.catch_up()
    with cuda.capture():  # a copy, an event or a question would raise here
        calls.add(2, {"loss": FakeNumber(2.0), "lr": 0.1})
        calls.add(3, {"loss": FakeNumber(3.0)})
        assert not calls.flush(0.02)
    calls.add(4, {"loss": FakeNumber(4.0)})
    assert calls.flush(_PATIENCE_S)
    assert asking_oneself.values() == [1.0, 4.0]
    assert asking_oneself.values("lr") == [0.1]
    assert calls.dropped == 2
    assert len(asking_oneself.said) == 1
    assert "captured" in asking_oneself.said[0]


def test_a_device_that_is_far_behind_costs_the_oldest_with_a_count_and_one_word(logging: Logging) -> None:
    logging.cuda.work(10)
    for step in range(1300):
        logging.calls.add(step, {"loss": FakeNumber(float(step))})
    assert logging.calls.dropped == 300
    assert len(logging.said) == 1
    logging.cuda.catch_up()
    assert logging.calls.flush(_PATIENCE_S)
    assert logging.values() == [float(step) for step in range(300, 1300)]


def test_a_flush_ends_at_its_deadline(logging: Logging) -> None:
    logging.cuda.work(10)
    logging.calls.add(1, {"loss": FakeNumber(1.0)})
    assert not logging.calls.flush(0.02)


def test_a_device_that_fails_is_told_once_and_raises_nothing(asking_oneself: Logging) -> None:
    cuda, calls = asking_oneself.cuda, asking_oneself.calls

    def broken() -> bool:
        raise RuntimeError("CUDA error: device-side assert triggered")

    calls.add(1, {"loss": FakeNumber(1.0)})
    cuda.events[-1].query = broken  # type: ignore[method-assign]
    for step in range(3):
        calls.add(step, {"loss": FakeNumber(1.0)})
    assert any("device-side assert" in text for text in asking_oneself.said)


def test_events_are_used_again(logging: Logging) -> None:
    for step in range(50):
        logging.calls.add(step, {"loss": FakeNumber(1.0)})
        assert logging.calls.flush(_PATIENCE_S)
    assert len(logging.cuda.events) < 10


def test_the_thread_stops_for_a_fork_and_goes_on_after_it(logging: Logging) -> None:
    before = threads()
    logging.calls.add(1, {"loss": FakeNumber(1.0)})
    logging.calls.pause()
    assert not threads() - before
    logging.cuda.work(10)
    logging.calls.resume()
    logging.calls.add(2, {"loss": FakeNumber(2.0)})
    logging.cuda.catch_up()
    until(lambda: logging.values() == [1.0, 2.0])


@pytest.fixture
def plain() -> tuple[list[Point], LoggedCalls]:
    points: list[Point] = []
    return points, LoggedCalls(points.append, lambda _text: None)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, 3.0),
        (True, 1.0),
        (np.float32(0.5), 0.5),
        (np.bool_(True), 1.0),
        (np.array([2]), 2.0),
        (torch.tensor(1.5, dtype=torch.bfloat16), 1.5),
        (torch.tensor([[7]]), 7.0),
        (torch.tensor(True), 1.0),
        (torch.tensor(2.0, requires_grad=True), 2.0),
        (torch.tensor(float("-inf")), float("-inf")),
        (torch.nn.Parameter(torch.ones(1)), 1.0),
    ],
)
def test_whatever_is_a_number_is_taken(
    plain: tuple[list[Point], LoggedCalls], value: Any, expected: float
) -> None:
    points, calls = plain
    calls.add(0, {"it": value})
    assert points[0].values == {"it": expected}
    assert type(points[0].values["it"]) is float


def test_a_cpu_tensor_is_read_at_once(plain: tuple[list[Point], LoggedCalls]) -> None:
    points, calls = plain
    before = threads()
    loss = torch.tensor(1.0)
    calls.add(0, {"loss": loss})
    loss.add_(5)
    assert points[0].values == {"loss": 1.0}
    assert not threads() - before


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("0.5", "text: '0.5'"),
        (torch.ones(3), "shape (3,)"),
        (torch.ones(0), "shape (0,)"),
        (torch.ones(1, dtype=torch.cfloat), "complex"),
        (torch.ones((), device="meta"), "without data"),
        (None, "NoneType"),
        ([1.0], "list"),
        (10**400, "past 1e308"),
    ],
)
def test_what_is_no_number_is_refused_with_a_way_out(
    plain: tuple[list[Point], LoggedCalls], value: Any, said: str
) -> None:
    points, calls = plain
    with pytest.raises(Refused) as refused:
        calls.add(0, {"good": 1.0, "bad": value})
    assert said in refused.value.received
    assert refused.value.remedy
    assert points == []


def test_other_devices_are_read_by_the_thread_from_a_copy() -> None:
    class Slow(FakeNumber):
        """On a device without events of its own: to read it is to wait for it."""

        def clone(self) -> "Slow":
            return Slow(self.value, kind="xpu")

        def item(self) -> float:
            read_in.append(threading.current_thread().name)
            return self.value

    read_in: list[str] = []
    logging = Logging(thread_asks=True)
    number = Slow(1.0, kind="xpu")
    logging.calls.add(1, {"loss": number})
    number.value = 2.0
    until(lambda: logging.values() == [1.0])
    assert read_in == ["flatout-log"]
    logging.calls.pause()


def test_a_forked_child_starts_with_nothing_of_the_parents(logging: Logging) -> None:
    logging.cuda.work(10)
    logging.calls.add(1, {"loss": FakeNumber(1.0)})
    logging.calls.pause()
    child = os.fork()
    if not child:
        logging.calls.leave_to_the_parent()
        os._exit(0 if not logging.points else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    logging.calls.resume()
    logging.cuda.catch_up()
    until(lambda: logging.values() == [1.0])
