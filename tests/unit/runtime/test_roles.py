"""What a process does is known by how it was started; that it is an orphan, only when it is certain."""

import dataclasses

import pytest

from flatout.runtime.process_table import Seen
from flatout.runtime.roles import flatout_command, role_of, script_name, short_command, why_orphan
from tests.fakes.process_tables import forked, loader_worker, machine, seen

SPAWNED = (
    "-c",
    "from multiprocessing.spawn import spawn_main; spawn_main(pipe_handle=7)",
    "--multiprocessing-fork",
)
TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "RANK": "0"}
SCRIPT = seen(100, 60, "train.py", "--lr", "3e-4")


@pytest.mark.parametrize(
    ("process", "role"),
    [
        (SCRIPT, "script"),
        (seen(100, 60, "-u", "-X", "dev", "train.py"), "script"),
        (seen(100, 60, "serve.py", holds_torch=False), "helper"),
        (seen(100, 60, "serve.py", holds_torch=False, variables={"FLATOUT_SESSION": "/a"}), "script"),
        (seen(100, 60, "train.py", variables={"RANK": "1"}), "rank"),
        (seen(100, 60, "/venv/bin/torchrun", "train.py"), "launcher"),
        (seen(100, 60, "-m", "torch.distributed.run", "train.py"), "launcher"),
        (seen(100, 60, "/venv/bin/accelerate", "launch", "train.py"), "launcher"),
        (seen(100, 60, "/venv/bin/accelerate", "config"), "script"),
        (seen(100, 60, "renamed", name="pt_elastic"), "launcher"),
        (seen(100, 60, "/venv/bin/flatout", "run", "train.py", holds_torch=False), "flatout"),
        (seen(100, 60, "-m", "flatout", "tune", "train.py", holds_torch=False), "flatout"),
        (seen(100, 60, "-m", "flatout", "ps", holds_torch=False), "helper"),
        (seen(100, 60, "-P", "-m", "flatout.runtime.keeper", holds_torch=False), "keeper"),
        (seen(100, 60, "-m", "torch._inductor.compile_worker", "--parent=60"), "compile worker"),
        (seen(100, 60, *SPAWNED), "worker"),
        (seen(100, 60, *SPAWNED, name="pt_data_worker"), "loader worker"),
        (seen(100, 60, words=("tee", "log"), is_python=False, holds_torch=False), "helper"),
    ],
)
def test_the_role_is_known_by_how_it_was_started(process: Seen, role: str) -> None:
    assert role_of(process, machine(process)) == role


def test_copies_of_a_script_are_its_workers() -> None:
    worker, other = loader_worker(101, SCRIPT), forked(102, SCRIPT)
    table = machine(SCRIPT, worker, other)
    assert [role_of(one, table) for one in (worker, other)] == ["loader worker", "worker"]
    assert not any(why_orphan(one, role_of(one, table), table) for one in (SCRIPT, worker, other))


def orphan_reason(process: Seen, *others: Seen) -> str:
    table = machine(process, *others)
    return why_orphan(process, role_of(process, table), table)


@pytest.mark.parametrize(
    "process",
    [
        loader_worker(101, SCRIPT, parent=1),
        forked(101, SCRIPT, parent=1),
        seen(101, 1, *SPAWNED),
        seen(101, 1, "-m", "torch._inductor.compile_worker", "--parent=100"),
        seen(101, 1, "train.py", variables=TORCHRUN, session=101),
    ],
    ids=["loader worker", "forked", "spawned", "compile worker", "rank of torchrun"],
)
def test_whoever_is_left_by_a_dead_parent_is_an_orphan(process: Seen) -> None:
    assert "gone" in orphan_reason(process)


def test_a_worker_that_a_subreaper_inherited_is_an_orphan() -> None:
    keeper = seen(60, 1, "-m", "flatout.runtime.keeper", holds_torch=False)
    manager = seen(61, 1, words=("/lib/systemd/systemd", "--user"), is_python=False, name="systemd")
    assert "gone" in orphan_reason(loader_worker(101, SCRIPT, parent=60), keeper)
    assert "gone" in orphan_reason(loader_worker(101, SCRIPT, parent=61), manager)
    assert "gone" in orphan_reason(seen(101, 60, *SPAWNED), keeper)


@pytest.mark.parametrize(
    "process",
    [
        seen(100, 1, "train.py"),
        seen(100, 1, "train.py", session=100),
        seen(100, 1, "train.py", forked=True, session=99, group=99),
        seen(100, 1, "train.py", forked=True, session=100, group=100),
        seen(100, 0, "train.py", variables=TORCHRUN),
        seen(100, 1, "train.py", variables={"RANK": "0"}),
        dataclasses.replace(loader_worker(100, SCRIPT, parent=1), status="zombie"),
    ],
    ids=["nohup", "setsid", "daemon", "daemon that leads", "docker exec", "rank by hand", "zombie"],
)
def test_whoever_may_have_left_on_purpose_is_no_orphan(process: Seen) -> None:
    assert orphan_reason(process) == ""


def test_workers_of_a_containers_first_process_are_no_orphans() -> None:
    first = seen(1, 0, "train.py", session=1, group=1)
    for worker in (loader_worker(7, first), forked(8, first), seen(9, 1, *SPAWNED)):
        table = machine(worker)
        table.by_pid[1] = first
        assert why_orphan(worker, role_of(worker, table), table) == ""


def test_a_rank_below_a_wrapper_is_no_orphan() -> None:
    wrapper = seen(60, 50, words=("bash", "wrap.sh"), is_python=False, variables=TORCHRUN)
    assert orphan_reason(seen(101, 60, "train.py", variables=TORCHRUN), wrapper) == ""


def test_jobs_are_called_by_what_was_started() -> None:
    assert short_command(SCRIPT) == "train.py --lr 3e-4"
    assert short_command(seen(1, 0, "/home/ada/train.py", "x" * 90), at_most=20) == "train.py xxxxxxxx..."
    run = seen(1, 0, "-m", "torch.distributed.run", "--nproc-per-node", "2", "/a/train.py", "--lr", "1")
    assert short_command(run) == "torchrun train.py --lr 1"
    assert script_name(run) == "train.py"
    assert short_command(seen(1, 0, "-c", "import torch")) == "python -c ..."
    assert script_name(seen(1, 0, "-m", "ada.train")) == "ada.train"
    assert short_command(seen(1, 0, words=(), name="kworker", is_python=False)) == "kworker"


def test_commands_of_ours_are_known_by_their_name() -> None:
    assert flatout_command(seen(1, 0, "/venv/bin/flatout", "run")) == "run"
    assert flatout_command(seen(1, 0, "-m", "flatout")) == ""
    assert flatout_command(seen(1, 0, "flatout.py", "run")) == ""
