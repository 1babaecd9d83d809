"""Being asked to stop: between two steps, on all ranks alike, with the script's own handlers called."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from flatout.runtime import stopping
from flatout.runtime.stopping import Stop, call_no_ranks_from_signals
from tests.fakes.rank_store import RankStore


@pytest.fixture
def stop() -> Iterator[Stop]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}
    one = Stop()
    yield one
    one.leave()
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_is_an_answer(stop: Stop, number: int) -> None:
    assert not stop.requested()
    send(number)
    assert stop.requested()
    assert stop.exit_code == 128 + number


def test_a_second_signal_changes_nothing_but_a_second_ctrl_c_interrupts(stop: Stop) -> None:
    stop.listen()
    send(signal.SIGTERM)
    send(signal.SIGTERM)
    assert stop.exit_code == 143
    stop.asked_at = time.monotonic()
    send(signal.SIGINT)  # the same, told to the whole group and passed on besides
    stop.asked_at -= 1.0
    with pytest.raises(KeyboardInterrupt):
        send(signal.SIGINT)


def test_the_scripts_own_handlers_are_called_and_put_back(stop: Stop) -> None:
    called: list[int] = []

    def own(number: int, _frame: Any) -> None:
        called.append(number)

    signal.signal(signal.SIGTERM, own)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    stop.listen()
    send(signal.SIGTERM)
    send(signal.SIGUSR1)
    assert called == [signal.SIGTERM]
    assert stop.exit_code == 143
    stop.leave()
    assert signal.getsignal(signal.SIGTERM) is own
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN


def test_a_handler_that_came_later_stays(stop: Stop) -> None:
    stop.listen()
    later = signal.signal(signal.SIGTERM, lambda *_: None)
    assert later == stop._on_signal
    mine = signal.getsignal(signal.SIGTERM)
    stop.leave()
    assert signal.getsignal(signal.SIGTERM) is mine


def test_another_thread_leaves_signals_alone(stop: Stop) -> None:
    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=stop.listen)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("ahead", [-1, 0, 1])
def test_ranks_stop_at_the_same_step_whoever_is_ahead(ahead: int) -> None:
    store, told, other = RankStore(), Stop(), Stop()
    told.listen = other.listen = lambda: False  # type: ignore[method-assign]
    for _ in range(5):
        told.requested(store)
    for _ in range(5 + ahead):
        other.requested(store)
    told.signal = signal.SIGTERM
    steps = [5, 5 + ahead]
    for rank, one in enumerate((told, other)):
        while not one.requested(store):
            steps[rank] += 1
    assert steps[0] == steps[1]


WITH_WORKERS = """
import signal, sys, time, torch, flatout
loader = torch.utils.data.DataLoader(torch.zeros(100000, 1), num_workers=2)
for batch in loader:
    print("step", flush=True)
    time.sleep(0.5)
    if flatout.stop_requested():
        break
print("saved", flush=True)
"""


def test_workers_that_a_scheduler_kills_do_not_fail_the_last_step() -> None:
    words = [sys.executable, "-c", WITH_WORKERS]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True) as job:
        assert job.stdout is not None
        for _ in range(2):
            assert job.stdout.readline() == "step\n"
        os.killpg(job.pid, signal.SIGTERM)  # as Slurm does: workers too
        assert job.stdout.read().splitlines()[-1] == "saved"
        assert job.wait(60) == 0


class Composed:
    """As Lightning sets one for SIGTERM."""

    def __init__(self, *handlers: Any) -> None:
        self.signal_handlers = list(handlers)

    def __call__(self, number: int, frame: Any) -> None:
        for one in self.signal_handlers:
            one(number, frame)


@pytest.mark.parametrize(("ranks", "called"), [(2, ["script"]), (1, ["lightning", "script"])])
def test_of_several_ranks_none_is_called_from_a_handler(
    stop: Stop, monkeypatch: pytest.MonkeyPatch, ranks: int, called: list[str]
) -> None:
    seen = []

    def _sigterm_notifier_fn(number: int, frame: Any) -> None:
        seen.append("lightning")

    signal.signal(signal.SIGTERM, Composed(_sigterm_notifier_fn, lambda *_: seen.append("script")))
    monkeypatch.setattr(stopping, "store_of_ranks", lambda: object() if ranks > 1 else None)
    call_no_ranks_from_signals()
    send(signal.SIGTERM)
    assert seen == called
