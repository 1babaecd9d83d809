"""`ps` and `stop` for a terminal: within 80 columns, with hints that can be pasted, and nothing obeyed."""

import dataclasses
import io
from typing import Any

import pytest
from rich.console import Console

from flatout.records.processes import HeldDevice, Holder, JobHere, JobProcess, ProcessesHere
from flatout.records.stopping import MemoryBack, StoppedJob, StoppedProcess, Stops
from flatout.report.ps import draw_ps
from flatout.report.stop import draw_stops

GIB = 1 << 30


def process(pid: int, parent: int, role: Any, **changes: Any) -> JobProcess:
    facts: dict[str, Any] = {
        "pid": pid,
        "parent_pid": parent,
        "role": role,
        "name": "python3",
        "command": "train.py",
        "user": "ada",
        "age_s": 4000.0,
        "state": "running",
        "state_reason": "",
        "cpu_share": 0.5,
        "host_memory_bytes": GIB,
    }
    return JobProcess(**{**facts, **changes})


def job(*processes: JobProcess, **changes: Any) -> JobHere:
    facts: dict[str, Any] = {
        "name": "train.py --lr 3e-4",
        "pid": processes[0].pid,
        "command": "train.py --lr 3e-4",
        "user": "ada",
        "age_s": 4000.0,
        "state": processes[0].state,
        "processes": processes,
    }
    return JobHere(**{**facts, **changes})


def held(*holders: Holder, **changes: Any) -> HeldDevice:
    facts: dict[str, Any] = {
        "index": 0,
        "uuid": "GPU-1",
        "vendor": "nvidia",
        "name": "NVIDIA H200",
        "memory_used_bytes": 20 * GIB,
        "memory_total_bytes": 140 * GIB,
        "processes": holders,
    }
    return HeldDevice(**{**facts, **changes})


def holder(pid: int, **changes: Any) -> Holder:
    facts: dict[str, Any] = {
        "pid": pid,
        "user": "ada",
        "job": "train.py --lr 3e-4",
        "job_pid": 100,
        "memory_bytes": 10 * GIB,
        "age_s": 4000.0,
        "state": "running",
        "state_reason": "kernels in 37 % of the last seconds",
    }
    return Holder(**{**facts, **changes})


def drawn(found: ProcessesHere, *, width: int = 80, everything: bool = False) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False)
    draw_ps(found, console, everything=everything)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(len(line) <= width for line in text.splitlines()), text
    return text


def here(*devices: HeldDevice, jobs: tuple[JobHere, ...] = (), **more: Any) -> ProcessesHere:
    return ProcessesHere(devices=devices, jobs=jobs, sampled_s=1.0, **more)


WORKERS = tuple(process(pid, 100, "loader worker") for pid in range(110, 118))
WHOLE = job(process(100, 50, "script"), *WORKERS)


def test_a_gpu_shows_who_holds_it_and_how_to_end_that() -> None:
    text = drawn(here(held(holder(100), holder(110, state="idle")), jobs=(WHOLE,)))
    assert "GPU 0  NVIDIA H200, 20.0 GiB of 140.0 GiB in use" in text
    assert "10.0 GiB" in text
    assert "1 h 6 min" in text
    assert "flatout stop 100" in text


@pytest.mark.parametrize("width", [80, 100, 120])
def test_who_holds_a_gpu_is_told_in_full_and_a_long_job_alone_is_shortened(width: int) -> None:
    name = "torchrun --nproc-per-node 4 pretrain.py --config small.yaml"
    facts = {"user": "alexandra", "job": name, "job_pid": 3481190, "memory_bytes": 71 * GIB}
    found = [holder(3481207, age_s=9 * 86400 + 5 * 3600.0, **facts), holder(3481208, age_s=60.0, **facts)]
    lines = drawn(here(held(*found)), width=width).splitlines()
    [first] = [line for line in lines if "3481207" in line]
    for whole in ("  3481207  ", "alexandra", "71.0 GiB", "9 d 5 h", "running  torchrun", "[3481190]"):
        assert whole in first
    assert (name in first) == (width == 120)


def test_workers_that_do_the_same_are_one_line_unless_all_are_asked_for() -> None:
    assert "110 ... 117  8 loader workers" in drawn(here(jobs=(WHOLE,)))
    assert drawn(here(jobs=(WHOLE,)), everything=True).count("loader worker") == 8


def test_orphans_and_zombies_are_marked_with_what_to_do() -> None:
    orphan = job(process(7, 1, "loader worker", state="orphan", state_reason="its parent is gone"))
    zombie = job(process(8, 3, "script", state="zombie"))
    text = drawn(here(held(holder(9, state="zombie", job=None, job_pid=None)), jobs=(orphan, zombie)))
    assert "1 process was left behind by jobs that are gone: flatout stop --orphans" in text
    assert "8 has ended; it goes when 3 takes notice" in text
    assert "memory of 9 on GPU 0 belongs to nobody" in " ".join(text.split())


def test_unknown_is_said_with_its_reason() -> None:
    text = drawn(here(held(processes=None, unknown={"processes": "this user may not read it"})))
    assert "who holds it is not known: this user may not read it" in text
    unlisted = drawn(here(held(unlisted_bytes=12 * GIB)))
    assert "12.0 GiB more are held by what cannot be seen from here" in unlisted


def test_a_machine_without_a_gpu_or_job_says_so() -> None:
    text = drawn(here())
    assert "no GPU can be seen here" in text
    assert "no training job runs here" in text


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_long_and_hostile_names_stay_in_their_line(width: int) -> None:
    name = "train\x1b[2J.py " + "x" * 300
    one = dataclasses.replace(WHOLE, name=name, command=name, run="20261116-103331-run-c8c411")
    text = drawn(here(held(holder(100, job=name, user="\x07" * 40)), jobs=(one,)), width=width)
    assert "\x1b" not in text
    assert "\x07" not in text


def stopped(**changes: Any) -> Stops:
    one = StoppedProcess(
        pid=100,
        role="script",
        command="train.py",
        why="it is the one that was named",
        signals=("SIGTERM",),
        gone=True,
        after_s=1.0,
    )
    whole = StoppedJob(name="train.py", pid=100, processes=(one,), grace_s=60.0, took_s=2.5)
    return Stops(**{"jobs": (whole,), "devices": (), "dry_run": False, "ended": True, **changes})


def told(stops: Stops) -> str:
    console = Console(file=io.StringIO(), width=80, highlight=False, markup=False)
    draw_stops(stops, console)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_what_ended_and_what_came_back_is_said() -> None:
    back = MemoryBack(
        index=0,
        uuid="GPU-1",
        held_before_bytes=10 * GIB,
        held_after_bytes=0,
        used_before_bytes=11 * GIB,
        used_after_bytes=GIB,
    )
    text = told(stopped(devices=(back,)))
    assert "train.py: 1 process ended after 2.50 s" in text
    assert "100 script: train.py: SIGTERM" in text
    assert "GPU 0: 10.0 GiB came back" in text
    some = dataclasses.replace(back, held_after_bytes=4 * GIB)
    assert "4.0 GiB of 10.0 GiB have not come back" in told(stopped(devices=(some,)))


def test_memory_that_cannot_be_known_is_not_claimed() -> None:
    back = MemoryBack(
        index=0,
        uuid="GPU-1",
        held_before_bytes=None,
        held_after_bytes=None,
        used_before_bytes=11 * GIB,
        used_after_bytes=GIB,
        unknown={"held_before_bytes": "pids of another namespace", "held_after_bytes": "the same"},
    )
    text = told(stopped(devices=(back,)))
    assert "cannot be known: pids of another namespace" in text
    assert "11.0 GiB before, 1.0 GiB now" in text
