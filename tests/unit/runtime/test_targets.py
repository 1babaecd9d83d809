"""What a name or a pid means, and what is refused before anything is touched."""

import os

import psutil
import pytest

from flatout.records.errors import CallerMistake
from flatout.runtime.jobs_here import jobs_in
from flatout.runtime.process_table import Seen, Table
from flatout.runtime.targets import Target, orphans_among, targets_for
from tests.fakes.process_tables import loader_worker, machine, seen

ME = psutil.Process().username()
SHELL = seen(50, 1, words=("-bash",), is_python=False, holds_torch=False, user=ME)


def chosen(table: Table, *wanted: str) -> list[Target]:
    return targets_for(wanted, table, jobs_in(table))


def refusal(table: Table, *wanted: str) -> CallerMistake:
    with pytest.raises(CallerMistake) as caught:
        chosen(table, *wanted)
    assert caught.value.exit_code == 2
    return caught.value


def mine(pid: int, parent: int, *words: str, **changes: object) -> Seen:
    return seen(pid, parent, *words, **{"user": ME, **changes})


def test_a_job_is_found_by_pid_by_script_and_by_what_ps_calls_it() -> None:
    table = machine(SHELL, mine(100, 50, "/home/ada/train.py", "--lr", "1"))
    for name in ("100", "train.py", "train.py --lr 1", "train"):
        [target] = chosen(table, name)
        assert (target.head.pid, target.asked) == (100, {100})


def test_under_run_the_script_is_asked_and_under_tune_flatout_itself() -> None:
    for command, asked in (("run", {110}), ("tune", {100})):
        flatout = mine(100, 50, "/venv/bin/flatout", command, "train.py", holds_torch=False)
        shell = mine(105, 100, words=("bash", "train.sh"), is_python=False, holds_torch=False)
        [target] = chosen(machine(SHELL, flatout, shell, mine(110, 105, "train.py")), "100")
        assert target.asked == asked
        assert [one.pid for one in target.members] == [100, 105, 110]


def test_a_name_of_several_jobs_is_refused_and_they_are_listed() -> None:
    error = refusal(machine(SHELL, mine(100, 50, "train.py"), mine(101, 50, "train.py")), "train.py")
    assert "2 jobs" in error.received
    assert "100" in error.expected
    assert "101" in error.expected


def test_an_unknown_name_offers_the_nearest() -> None:
    error = refusal(machine(SHELL, mine(100, 50, "train.py")), "trian.py")
    assert "train.py" in error.remedy
    assert "no job" in error.received
    assert "no process 4" in refusal(machine(SHELL), "4194303").received


@pytest.mark.parametrize(
    ("pid", "words"),
    [
        (1, "first process"),
        (os.getpid(), "this very command"),
        (os.getppid(), "runs in it"),
        (2, "kernel"),
        (300, "has ended"),
    ],
    ids=["first", "itself", "parent", "kernel", "ended"],  # the same in every process that collects
)
def test_some_processes_are_never_touched(pid: int, words: str) -> None:
    table = machine(
        mine(2, 1, words=(), name="kthreadd", is_python=False, of_the_kernel=True, holds_torch=False),
        mine(os.getppid(), 1, words=("bash",), is_python=False, holds_torch=False),
        mine(os.getpid(), os.getppid(), "-m", "flatout", "stop"),
        mine(300, 1, "train.py", status="zombie"),
    )
    assert words in refusal(table, str(pid)).received


def test_another_users_job_is_refused_unless_root_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    table = machine(SHELL, seen(100, 50, "train.py", user="grace"))
    assert "belongs to grace" in refusal(table, "train.py").received
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert chosen(table, "train.py")


def test_a_job_that_the_command_runs_in_is_refused() -> None:
    job = mine(100, 50, "train.py")
    own = mine(os.getpid(), 100, "-m", "flatout", "stop", holds_torch=False)
    assert "runs in it" in refusal(machine(SHELL, job, own), "train.py").received


def test_what_is_no_python_is_found_by_pid_alone() -> None:
    table = machine(SHELL, mine(100, 50, words=("vlc",), is_python=False, holds_torch=False, name="vlc"))
    assert "no job" in refusal(table, "vlc").received
    [target] = chosen(table, "100")
    assert [one.pid for one in target.members] == [100]


def test_a_tree_named_twice_is_ended_once() -> None:
    job = mine(100, 50, "train.py")
    table = machine(SHELL, job, loader_worker(101, job, user=ME))
    assert [target.head.pid for target in chosen(table, "100", "train.py", "101")] == [100]


def test_orphans_are_chosen_alone_and_by_name() -> None:
    gone = mine(90, 50, "train.py")
    job = mine(100, 50, "train.py")
    table = machine(
        SHELL,
        job,
        loader_worker(101, job, user=ME),
        *(loader_worker(pid, gone, parent=1, user=ME) for pid in (91, 92)),
    )
    jobs = jobs_in(table)
    [target] = orphans_among(jobs, table)
    assert [one.pid for one in target.members] == [91, 92]
    assert target.asked == frozenset(), "they have nothing to save"
    assert orphans_among(jobs, table, ["92"]) == [target]
    assert orphans_among(jobs, table, ["100"]) == []


def test_ranks_that_torchrun_left_behind_are_asked_to_save() -> None:
    variables = {"TORCHELASTIC_RUN_ID": "none", "RANK": "0"}
    table = machine(SHELL, mine(101, 1, "train.py", variables=variables, session=101))
    [target] = orphans_among(jobs_in(table), table)
    assert target.asked == {101}
