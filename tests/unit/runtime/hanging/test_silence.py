"""How long a job may be silent, and who keeps the others waiting."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from flatout.records.hang import HEARTBEAT, STACKS_FILE, Hang, Heartbeat, RankStanding
from flatout.runtime.hanging import watching
from flatout.runtime.hanging.culprit import culprit_of
from flatout.runtime.hanging.stacks import where_it_stands
from flatout.runtime.hanging.watching import Silence, hangs_told, read_heartbeats


def beat(updates: int, at_s: float, *, rank: int = 0, sign_s: float | None = None) -> Heartbeat:
    return Heartbeat(rank, 1, "", updates, at_s, at_s if sign_s is None else sign_s)


def lasting(silence: Silence, steps: int, step_s: float) -> float:
    for number in range(1, steps + 1):
        assert silence.look([beat(number, number * step_s)], is_stopped=False, now_s=number * step_s) is None
    return steps * step_s


def test_far_longer_than_usual_is_too_long_and_a_minute_never_is() -> None:
    silence = Silence()
    end_s = lasting(silence, 20, 0.5)
    assert silence.look([beat(20, end_s)], is_stopped=False, now_s=end_s + 55) is None
    slow = Silence()
    end_s = lasting(slow, 20, 10.0)
    assert slow.look([beat(20, end_s)], is_stopped=False, now_s=end_s + 290) is None
    assert slow.look([beat(20, end_s)], is_stopped=False, now_s=end_s + 1000) == 1000


def test_a_long_evaluation_that_gives_signs_is_no_hang_and_one_that_ended_is_remembered() -> None:
    silence = Silence(limit_s=5.0)
    lasting(silence, 10, 0.1)
    assert silence.look([beat(10, 1.0, sign_s=99.0)], is_stopped=False, now_s=100.0) is None
    usual = Silence()
    lasting(usual, 10, 0.1)
    assert usual.look([beat(10, 1.0)], is_stopped=False, now_s=50.0) is None
    assert usual.limit_s == 60.0
    assert usual.look([beat(11, 51.0)], is_stopped=False, now_s=51.0) is None
    assert usual.limit_s == 150.0


def test_looks_while_it_is_silent_do_not_put_the_hang_off() -> None:
    silence = Silence()
    end_s = lasting(silence, 20, 0.5)
    told = (
        now for now in range(1000) if silence.look([beat(20, end_s)], is_stopped=False, now_s=end_s + now)
    )
    assert next(told) == 61


def test_time_in_which_it_was_stopped_is_not_its_own() -> None:
    silence = Silence(limit_s=3.0)
    end_s = lasting(silence, 10, 0.1)
    assert silence.look([beat(10, end_s)], is_stopped=True, now_s=end_s + 100) is None
    assert silence.look([beat(10, end_s)], is_stopped=False, now_s=end_s + 102) is None
    assert silence.look([beat(10, end_s)], is_stopped=False, now_s=end_s + 104) == 4.0


def leave_a_beat(folder: Path, rank: int, pid: int, updates: int, ago_s: float, where: str = "ranks") -> None:
    place = folder / where / f"{rank}-{pid}"
    place.mkdir(parents=True)
    at_s = time.monotonic() - ago_s
    (place / "heartbeat").write_bytes(HEARTBEAT.pack(updates, at_s, at_s))


def test_a_process_that_is_gone_does_not_count_while_the_job_goes_on_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    monkeypatch.setattr(watching, "_LOOK_S", 0.01)
    found = threading.Event()
    told: list[Hang] = []

    def tell(hang: Hang) -> None:
        told.append(hang)
        found.set()

    leave_a_beat(tmp_path, 0, gone.pid, 900, ago_s=1000)
    leave_a_beat(tmp_path, 0, os.getpid(), 5, ago_s=1)
    leave_a_beat(tmp_path, 1, gone.pid, 900, ago_s=1000)
    assert [(one.rank, one.updates) for one in read_heartbeats(tmp_path)] == [(0, 5), (1, 900)]
    with hangs_told(tmp_path, tell, lambda: None, 100.0):
        assert not found.wait(0.2)
    with hangs_told(tmp_path, tell, lambda: None, 0.5):
        assert found.wait(60)
    assert told[0].culprit == 1
    assert told[0].silent_s < 100


def test_of_those_that_are_starting_one_that_has_ended_does_not_stand_for_its_rank(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    leave_a_beat(tmp_path, 0, gone.pid, 0, ago_s=100, where="starting")
    leave_a_beat(tmp_path, 0, os.getpid(), 0, ago_s=50, where="starting")
    assert [one.pid for one in read_heartbeats(tmp_path, "starting")] == [os.getpid()]


@pytest.mark.parametrize("has_loaded_torch", [True, False])
def test_a_start_without_an_update_is_told_once_and_its_end_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_loaded_torch: bool
) -> None:
    monkeypatch.setattr(watching, "_LOOK_S", 0.01)
    told: list[Hang] = []
    found, over = threading.Event(), threading.Event()

    def tell(hang: Hang) -> None:
        told.append(hang)
        found.set()

    if has_loaded_torch:
        leave_a_beat(tmp_path, 0, os.getpid(), 0, ago_s=50, where="starting")
        leave_a_beat(tmp_path, 0, os.getppid(), 0, ago_s=20, where="starting")  # came later: a helper
    with hangs_told(tmp_path, tell, over.set, 1000.0, startup_s=0.05):
        assert found.wait(60)
        assert not over.wait(0.1)
        leave_a_beat(tmp_path, 0, os.getpid(), 1, ago_s=0)
        assert over.wait(60)
    assert len(told) == 1
    assert (told[0].after_update, told[0].usual_s) == (0, None)
    assert [one.pid for one in told[0].ranks] == ([os.getpid()] if has_loaded_torch else [])
    assert told[0].words().startswith("no update yet, 0 s after the start: ")


def test_a_start_that_takes_its_time_within_the_limit_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_LOOK_S", 0.01)
    told: list[Hang] = []
    leave_a_beat(tmp_path, 0, os.getpid(), 0, ago_s=50, where="starting")
    with hangs_told(tmp_path, told.append, lambda: None, startup_s=1000.0):
        time.sleep(0.2)
    assert told == []


def standing(
    rank: int, *, updates: int = 9, stack: tuple[str, ...] = (), state: str = "sleeping"
) -> RankStanding:
    return RankStanding(
        rank=rank, pid=rank + 1, updates=updates, state=state, where=f"train.py:{rank}", call="f", stack=stack
    )


def test_the_culprit_is_who_is_gone_behind_or_alone_in_not_waiting() -> None:
    waits = ("MainThread", "  all_reduce (torch/distributed/distributed_c10d.py:1)", "  main (train.py:3)")
    assert culprit_of([standing(0), standing(1, state="gone")])[0] == 1
    assert culprit_of([standing(0), standing(1), standing(2, updates=8)])[0] == 2
    assert (
        culprit_of(
            [
                standing(0, stack=waits),
                standing(
                    1,
                    stack=("MainThread", "  sleep (train.py:2)", "flatout-writer", "  wait (threading.py:1)"),
                ),
                standing(2, stack=waits),
            ]
        )[0]
        == 1
    )
    nobody, why = culprit_of([standing(0, stack=waits), standing(1, stack=waits)])
    assert nobody is None
    assert "all 2 ranks wait" in why


HANGS = """
import os, sys, time
from pathlib import Path
from flatout.inside.heartbeat import Heart

def wait_for_ever():
    while True:
        time.sleep(0.1)

place = Path(sys.argv[1], "ranks", f"3-{os.getpid()}")
place.mkdir(parents=True)
Heart(place).beat(7)
wait_for_ever()
"""


def test_a_process_tells_where_it_stands_without_help(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HANGS)
    job = subprocess.Popen([sys.executable, str(tmp_path / "train.py"), str(tmp_path)])
    try:
        deadline = time.monotonic() + 30
        while not (found := read_heartbeats(tmp_path)) or not found[0].updates:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert (found[0].rank, found[0].pid, found[0].updates) == (3, job.pid, 7)
        shown = where_it_stands(found[0])
    finally:
        job.kill()
        job.wait()
    assert shown.state in ("running", "sleeping")
    assert any("train.py" in line for line in shown.stack)
    assert shown.where is not None
    assert shown.where.endswith("train.py:8 in wait_for_ever")


def test_a_process_that_cannot_answer_is_not_asked_where_it_stands(tmp_path: Path) -> None:
    other = subprocess.Popen(["sleep", "60"])
    try:
        (tmp_path / STACKS_FILE).write_text("of a process that had its number before\n")
        shown = where_it_stands(Heartbeat(0, other.pid, str(tmp_path), 1, 0.0, 0.0))
        assert (shown.stack, other.poll()) == ((), None)
    finally:
        other.kill()
        other.wait()
