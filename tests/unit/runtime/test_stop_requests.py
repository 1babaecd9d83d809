"""Being asked to stop: between two steps, on all ranks alike, with the script's own handlers called."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flatout.records.session import SESSION_VARIABLE
from flatout.runtime import stopping
from flatout.runtime.stopping import ASKED_FILE, Stop, call_no_ranks_from_signals
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
    signal.signal(signal.SIGTERM, lambda *_: None)
    mine = signal.getsignal(signal.SIGTERM)
    stop.leave()
    assert signal.getsignal(signal.SIGTERM) is mine


class Own:
    """A script's handler, which may pass a signal on to what it found."""

    def __init__(self, number: int = signal.SIGTERM, *, passes_on: bool = False) -> None:
        self.called = 0
        self.passes_on = passes_on
        self.found = signal.signal(number, self)

    def __call__(self, number: int, frame: Any) -> None:
        self.called += 1
        if self.passes_on and callable(self.found):
            self.found(number, frame)


def test_a_script_that_answers_the_signal_itself_is_left_to_do_so_and_is_stopped_where_it_does_not(
    stop: Stop, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not stop.requested()
    own = Own()
    assert not stop.requested()
    send(signal.SIGTERM)
    assert (own.called, stop.signal) == (1, signal.SIGTERM)
    assert not any(stop.requested() for _ in range(20))
    monkeypatch.setattr(stopping, "_OWN_S", 0.0)
    assert stop.requested()
    stop.leave()
    assert signal.getsignal(signal.SIGTERM) is own


def test_what_a_script_makes_of_sigusr1_never_ends_it(stop: Stop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "_OWN_S", 0.0)
    stop.listen()
    own = Own(signal.SIGUSR1)
    assert not stop.requested()
    send(signal.SIGUSR1)
    assert own.called == 1
    assert not any(stop.requested() for _ in range(20))
    send(signal.SIGTERM)
    assert stop.requested()
    assert stop.exit_code == 143


def test_handlers_that_pass_a_signal_on_are_each_called_once_and_ours_answers(stop: Stop) -> None:
    stop.listen()
    first = Own(passes_on=True)
    stop.listen()
    second = Own(passes_on=True)
    stop.listen()
    send(signal.SIGTERM)
    assert (first.called, second.called) == (1, 1)
    assert stop.requested()


def test_a_handler_that_is_taken_back_is_called_no_more(stop: Stop) -> None:
    stop.listen()
    own = Own()
    assert not stop.requested()
    signal.signal(signal.SIGTERM, own.found)
    send(signal.SIGTERM)
    assert own.called == 0
    assert stop.requested()


def test_a_signal_that_the_script_ignores_later_stays_ignored_and_a_default_one_is_ours(stop: Stop) -> None:
    stop.listen()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    assert not stop.requested()
    send(signal.SIGTERM)
    assert not stop.requested()
    send(signal.SIGUSR1)
    assert stop.requested()


def test_once_we_are_gone_a_handler_that_passes_on_to_us_comes_to_what_was_before(stop: Stop) -> None:
    before = Own()
    stop.listen()
    own = Own(passes_on=True)
    stop.listen()
    stop.leave()
    send(signal.SIGTERM)
    assert (own.called, before.called, stop.signal) == (1, 1, None)


def test_the_outside_knows_that_it_was_asked_and_a_worker_tells_nothing(
    stop: Stop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SESSION_VARIABLE, str(tmp_path / "order.json"))
    stop.listen()
    monkeypatch.setattr(stop, "_pid", os.getpid() + 1)
    send(signal.SIGTERM)
    assert not (tmp_path / ASKED_FILE).exists()
    stop.leave()
    stop.listen()
    send(signal.SIGTERM)
    assert (tmp_path / ASKED_FILE).read_text() == "SIGTERM"


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
    stop.listen()
    monkeypatch.setattr(stopping, "store_of_ranks", lambda: object() if ranks > 1 else None)
    call_no_ranks_from_signals()
    send(signal.SIGTERM)
    assert seen == called
