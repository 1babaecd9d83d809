"""Work with a deadline: results and errors pass, what does not come back is left."""

import threading
import time

import pytest

from flatout.infer.optimizing.deadline import TooLong, quiet_within, within


def test_results_and_errors_pass() -> None:
    assert within(30, lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        within(30, lambda: 1 / 0)


def test_python_that_never_ends_is_stopped() -> None:
    ended = threading.Event()

    def forever() -> None:
        try:
            while True:
                time.sleep(0.001)
        finally:
            ended.set()

    with pytest.raises(TooLong, match="no answer") as late:
        within(0.1, forever)
    assert late.value.is_gone
    assert ended.wait(10)


def test_whether_what_was_given_up_still_works_is_seen() -> None:
    at_work, enough = threading.Event(), threading.Event()

    def busy() -> None:
        while not enough.is_set():
            at_work.set()
            sum(range(10_000))

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        assert at_work.wait(10)
        assert not quiet_within(1.0)
    finally:
        enough.set()
        thread.join()
    assert quiet_within(30.0)
