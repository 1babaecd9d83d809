"""Processes are put together as jobs: launchers with their ranks, scripts with their workers."""

import os
from pathlib import Path

from flatout.runtime.jobs_here import Job, jobs_in, left_behind
from flatout.runtime.process_table import Table
from tests.fakes.process_tables import loader_worker, machine, seen

SHELL = seen(50, 1, words=("-bash",), is_python=False, holds_torch=False, session=50)


def one_job(table: Table) -> Job:
    [job] = jobs_in(table)
    return job


def pids(job: Job) -> list[int]:
    return [one.pid for one in job.members]


def test_a_launcher_its_ranks_and_their_workers_are_one_job() -> None:
    launcher = seen(100, 50, "/venv/bin/torchrun", "train.py", name="pt_elastic")
    wrapper = seen(101, 100, words=("bash", "wrap.sh"), is_python=False, holds_torch=False)
    ranks = [
        seen(110, 100, "train.py", variables={"RANK": "0"}, session=110),
        seen(111, 101, "train.py", session=111),
    ]
    workers = [loader_worker(120, ranks[0]), loader_worker(121, ranks[1])]
    job = one_job(machine(SHELL, launcher, wrapper, *ranks, *workers))
    assert pids(job) == [100, 101, 111, 121, 110, 120]
    assert (job.name, job.names) == ("torchrun train.py", {"torchrun train.py", "train.py"})
    assert not job.orphans


def test_a_script_that_another_script_starts_as_a_program_is_a_job_of_its_own() -> None:
    notebook = seen(100, 50, "-m", "ipykernel_launcher")
    script = seen(110, 100, "train.py")
    assert [job.head.pid for job in jobs_in(machine(SHELL, notebook, script))] == [100, 110]


def test_what_runs_under_flatout_is_named_by_its_run(tmp_path: Path) -> None:
    folder = tmp_path / ".flatout" / "runs" / "20261116-103331-run-c8c411"
    (folder / "job").mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    marked = {"FLATOUT_SESSION": str(folder / "job" / "order.json")}
    run = seen(100, 50, "/venv/bin/flatout", "run", "train.py", holds_torch=False)
    script = seen(110, 100, "train.py", variables=marked)
    evaluation = seen(111, 110, "evaluate.py", variables=marked)
    stray = seen(
        130, 1, words=("sleep", "9"), is_python=False, holds_torch=False, variables=marked, session=130
    )
    job = one_job(machine(SHELL, run, script, evaluation, stray))
    assert pids(job) == [100, 110, 111, 130]
    assert (job.name, job.run_folder) == ("20261116-103331-run-c8c411", folder)
    assert (job.command, job.main.pid) == ("train.py", 110)
    assert job.joined == {130: "it carries the job's FLATOUT_SESSION"}


def test_two_runs_below_one_shell_are_two_jobs() -> None:
    runs = [seen(pid, 50, "/venv/bin/flatout", "run", "train.py", holds_torch=False) for pid in (100, 101)]
    scripts = [
        seen(pid + 10, pid, "train.py", variables={"FLATOUT_SESSION": f"/runs/{pid}/order.json"})
        for pid in (100, 101)
    ]
    assert [pids(job) for job in jobs_in(machine(SHELL, *runs, *scripts))] == [[100, 110], [101, 111]]


def test_neighbours_in_a_pipe_are_not_part_of_a_job() -> None:
    script = seen(100, 50, "train.py", group=100)
    tee = seen(101, 50, words=("tee", "log"), is_python=False, holds_torch=False, group=100)
    assert pids(one_job(machine(SHELL, script, tee))) == [100]


def test_what_init_inherited_belongs_to_the_group_it_is_in() -> None:
    script = seen(100, 50, "train.py", group=100)
    left = seen(101, 1, words=("sleep", "9"), is_python=False, holds_torch=False, group=100)
    job = one_job(machine(SHELL, script, left))
    assert job.joined == {101: "it is in the job's process group"}


def test_orphans_are_told_apart_from_jobs_that_live() -> None:
    gone = seen(100, 50, "train.py")
    lives = seen(200, 50, "train.py")
    left, kept = loader_worker(101, gone, parent=1), loader_worker(201, lives)
    jobs = jobs_in(machine(SHELL, lives, left, kept))
    assert [pids(job) for job in jobs] == [[101], [200, 201]]
    assert [one.pid for one in left_behind(jobs)] == [101]


def test_a_process_that_holds_a_gpu_is_a_job_whatever_it_is() -> None:
    player = seen(300, 50, words=("vlc",), is_python=False, holds_torch=False, name="vlc")
    assert jobs_in(machine(SHELL, player)) == []
    [job] = jobs_in(machine(SHELL, player), holders={300, 4242})
    assert (job.name, pids(job)) == ("vlc", [300])


def test_flatout_does_not_list_itself() -> None:
    own = seen(os.getpid(), 50, "-m", "flatout", "ps", variables={"FLATOUT_SESSION": "/runs/1/order.json"})
    assert jobs_in(machine(SHELL, own)) == []
