"""A tree of real processes ends whole, after it could save, and whoever stands beside it is left alone."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from flatout.records.stopping import StoppedJob, StoppedProcess
from flatout.runtime import stopping_jobs
from flatout.runtime.jobs_here import jobs_in
from flatout.runtime.process_table import Table
from flatout.runtime.stopping_jobs import end_all, would_send
from flatout.runtime.targets import orphans_among, targets_for
from tests.detached import Detached, kill, lives, table_of, until

Start = Callable[..., Detached]

# Two workers as a DataLoader forks them, by name and by nature; they sleep in "C" and look at nothing.
WORKERS = """
import signal, sys, time
def worker(name):
    if os.fork() == 0:
        open("/proc/self/comm", "w").write("pt_data_worker")
        note(name)
        time.sleep(600)
        os._exit(0)
worker("first"), worker("second")
"""
WAITS = "note('main')\nwhile True: time.sleep(600)\n"
SAVES = """
def save(number, frame):
    time.sleep(0.3)
    open("saved", "w").write(str(number))
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
"""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """`start("a", SOURCE)`: a job in a folder of that name, known as training by its session."""
    monkeypatch.setattr(stopping_jobs, "_BY_THEMSELVES_S", 0.5)
    # Nobody here takes as long who is not to be killed.
    monkeypatch.setattr(stopping_jobs, "_TOLD_S", 60.0)
    started: list[Detached] = []

    def begin(name: str, source: str, *arguments: str, **variables: str) -> Detached:
        folder = tmp_path / name
        given = {"FLATOUT_SESSION": str(folder / "order.json"), **variables}
        started.append(Detached.python(folder, source, *arguments, **given))
        return started[-1]

    yield begin
    for one in started:
        one.end()


@pytest.fixture
def look(tmp_path: Path) -> Callable[[], Table]:
    return lambda: table_of(tmp_path)


def stop(look: Callable[[], Table], *wanted: str, grace_s: float = 60.0) -> StoppedJob:
    table = look()
    [done] = end_all(targets_for(wanted, table, jobs_in(table)), grace_s, look=look)
    return done


def of(done: StoppedJob, pid: int) -> StoppedProcess:
    return next(one for one in done.processes if one.pid == pid)


def test_a_job_that_saves_when_asked_has_saved_and_nobody_is_left(
    start: Start, look: Callable[[], Table]
) -> None:
    job = start("a", WORKERS + SAVES + WAITS)
    pids = [job.noted(name) for name in ("main", "first", "second")]
    done = stop(look, str(job.pid))
    assert (job.folder / "saved").read_text() == str(signal.SIGTERM.value)
    assert [one.pid for one in done.processes] == pids
    assert all(one.gone for one in done.processes)
    assert not any(map(lives, pids))
    assert of(done, pids[0]).signals == ("SIGTERM",), "it was asked, and no more"
    assert of(done, pids[1]).signals == ("SIGTERM",), "a worker that sleeps is told, after the script ended"
    assert of(done, pids[1]).role == "loader worker"


def test_a_job_that_ignores_the_question_is_killed_after_the_grace(
    start: Start, look: Callable[[], Table]
) -> None:
    job = start("a", "import time, signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAITS)
    main = job.noted("main")
    done = stop(look, "train.py", grace_s=0.5)
    assert of(done, main).signals == ("SIGTERM", "SIGKILL")
    assert of(done, main).gone
    assert not lives(main)


def test_a_stopped_job_goes_on_in_order_to_save(start: Start, look: Callable[[], Table]) -> None:
    job = start("a", WORKERS + SAVES + WAITS)
    main = job.noted("main")
    job.noted("second")
    os.kill(main, signal.SIGSTOP)
    until(lambda: psutil.Process(main).status() == psutil.STATUS_STOPPED, "the stop")
    done = stop(look, str(main))
    assert of(done, main).signals == ("SIGTERM", "SIGCONT")
    assert (job.folder / "saved").exists()


def test_jobs_beside_it_and_processes_that_look_the_same_are_untouched(
    start: Start, look: Callable[[], Table]
) -> None:
    job, other = start("a", WORKERS + WAITS), start("b", WORKERS + WAITS)
    beside = [other.noted(name) for name in ("main", "first", "second")]
    ended = [job.noted(name) for name in ("main", "first", "second")]
    done = stop(look, str(job.pid))
    assert [one.pid for one in done.processes] == ended
    assert not any(map(lives, ended))
    assert all(map(lives, beside))


def test_daemons_that_carry_its_session_belong_to_a_job(start: Start, look: Callable[[], Table]) -> None:
    daemon = """
import time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        note("daemon")
        time.sleep(600)
    os._exit(0)
os.wait()
"""
    job = start("a", daemon + WAITS)
    pid, main = job.noted("daemon"), job.noted("main")
    assert psutil.Process(pid).ppid() != main
    done = stop(look, str(main))
    assert "FLATOUT_SESSION" in of(done, pid).why
    assert not lives(pid)


def test_processes_left_to_init_in_its_group_belong_to_a_job(start: Start, look: Callable[[], Table]) -> None:
    # Without the session: a group that the job leads is all that ties it to them.
    child = """
import subprocess, sys, time
pid = os.fork()
if pid == 0:
    left = subprocess.Popen(["sleep", "600"], env={})
    open("left.part", "w").write(str(left.pid)); os.replace("left.part", "left")
    os._exit(0)
os.waitpid(pid, 0)
"""
    job = start("a", child + WAITS)
    left, main = job.noted("left"), job.noted("main")
    assert psutil.Process(left).ppid() != main
    done = stop(look, str(main))
    assert "process group" in of(done, left).why
    assert not lives(left)


def test_what_a_job_starts_while_it_ends_ends_too(start: Start, look: Callable[[], Table]) -> None:
    breeds = """
import signal, subprocess, sys, time
def breed(number, frame):
    late = subprocess.Popen(["sleep", "600"], start_new_session=True, env={})
    open("late.part", "w").write(str(late.pid)); os.replace("late.part", "late")
    while not os.path.exists("seen"):
        time.sleep(0.01)
    sys.exit(0)
signal.signal(signal.SIGTERM, breed)
"""
    job = start("a", breeds + WAITS)
    main = job.noted("main")

    def looking() -> Table:
        is_there = (job.folder / "late").exists()
        table = look()
        if is_there:
            (job.folder / "seen").touch()
        return table

    done = stop(looking, str(main))
    late = job.noted("late")
    assert "started meanwhile" in of(done, late).why
    assert not lives(late)


def test_ranks_whose_launcher_dies_without_a_word_are_asked_themselves(
    start: Start, look: Callable[[], Table]
) -> None:
    launcher = """
import subprocess, sys, time
for rank in "01":
    subprocess.Popen([sys.executable, "rank.py"], env={**os.environ, "RANK": rank}, start_new_session=True)
"""
    rank = (
        "import os, sys, time, signal\n"
        "def save(number, frame):\n    open('saved' + os.environ['RANK'], 'w').close(); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "open('rank' + os.environ['RANK'], 'w').write(str(os.getpid()))\nwhile True: time.sleep(600)\n"
    )
    job = start("a", f"open('rank.py', 'w').write({rank!r})\n" + launcher + WAITS)
    main = job.noted("main")
    ranks = [until(lambda name=name: _number(job.folder / name)) for name in ("rank0", "rank1")]
    done = stop(look, str(main))
    assert [of(done, pid).signals for pid in ranks] == [("SIGTERM",)] * 2
    assert {path.name for path in job.folder.glob("saved*")} == {"saved0", "saved1"}


def test_workers_whose_parent_was_killed_are_orphans_and_end_alone(
    start: Start, look: Callable[[], Table]
) -> None:
    job, other = start("a", WORKERS + WAITS), start("b", WORKERS + WAITS)
    workers = [job.noted("first"), job.noted("second")]
    beside = [other.noted(name) for name in ("main", "first", "second")]
    kill(job.noted("main"))
    assert all(map(lives, workers)), "nobody has told them"
    table = look()
    found = jobs_in(table)
    targets = orphans_among(found, table)
    assert sorted(one.pid for target in targets for one in target.members) == sorted(workers)
    end_all(targets, 20.0, look=look)
    assert not any(map(lives, workers))
    assert all(map(lives, beside))


def test_a_dry_run_names_everybody_and_touches_nobody(start: Start, look: Callable[[], Table]) -> None:
    job = start("a", WORKERS + SAVES + WAITS)
    pids = [job.noted(name) for name in ("main", "first", "second")]
    table = look()
    [target] = targets_for(["train.py"], table, jobs_in(table))
    plan = would_send(target, 60.0)
    assert [one.pid for one in plan.processes] == pids
    assert plan.processes[0].signals == ("SIGTERM", "SIGKILL after 60 s")
    assert all(one.gone is None and one.why for one in plan.processes)
    assert all(map(lives, pids))
    assert not (job.folder / "saved").exists()


def test_a_part_of_a_job_ends_without_the_rest(start: Start, look: Callable[[], Table]) -> None:
    job = start("a", WORKERS + WAITS)
    main, first, second = (job.noted(name) for name in ("main", "first", "second"))
    done = stop(look, str(first))
    assert [one.pid for one in done.processes] == [first]
    assert done.notes == (f"a part of train.py ({main}), which goes on",)
    assert not lives(first)
    assert lives(main)
    assert lives(second)


def _number(path: Path) -> int:
    return int(path.read_text() or 0) if path.exists() else 0
