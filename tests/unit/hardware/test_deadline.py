"""Workers give up waiting, remember what is stuck, and never pile calls up behind it."""

import threading

import pytest

from flatout.hardware.deadline import DeadlinePassed, Worker


def test_an_answer_in_time_comes_back() -> None:
    assert Worker("w").call(lambda: 7, 60) == 7


def test_an_exception_is_raised_where_the_answer_is_asked_for() -> None:
    with pytest.raises(ZeroDivisionError):
        Worker("w").call(lambda: 1 / 0, 60)


def test_while_a_call_is_stuck_further_calls_fail_at_once_and_later_ones_work_again() -> None:
    worker, release, ran = Worker("w"), threading.Event(), []
    with pytest.raises(DeadlinePassed, match="no answer"):
        worker.call(lambda: release.wait(60), 0.05)
    with pytest.raises(DeadlinePassed, match="blocked"):
        worker.call(lambda: ran.append(1), 5)
    assert ran == []
    release.set()
    for _ in range(6000):
        try:
            assert worker.call(lambda: 3, 60) == 3
            return
        except DeadlinePassed:
            threading.Event().wait(0.01)
    pytest.fail("the worker never came back")


def test_the_worker_does_not_keep_the_interpreter_alive() -> None:
    worker = Worker("w")
    worker.call(lambda: None, 60)
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "w")
