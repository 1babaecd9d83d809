"""Live files are read by anybody at any time: young, old, broken, from other machines and killed jobs."""

import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from flatout.records.codec import encode
from flatout.records.live import LIVE_FILE, LIVE_KIND, LiveJob
from flatout.records.processes import JobHere
from flatout.runtime.live_jobs import ENDED_FOR_S, GONE_FOR_S, live_jobs


@pytest.fixture
def gone_pid() -> int:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


def write(root: Path, run: str, *, age_s: float = 0.0, version: int = 1, **changes: Any) -> Path:
    folder = root / "runs" / run
    folder.mkdir(parents=True)
    written = time.time() - age_s
    facts: dict[str, Any] = {
        "run": run,
        "name": "train.py",
        "run_folder": str(folder),
        "host": platform.node(),
        "pid": os.getpid(),
        "user": "me",
        "state": "training",
        "started_at_unix_s": written,
        "written_at_unix_s": written,
        **changes,
    }
    path = folder / LIVE_FILE
    path.write_bytes(encode(LIVE_KIND, version, LiveJob(**facts)))
    os.utime(path, (written, written))
    return folder


def job_here(folder: Path) -> JobHere:
    return JobHere(
        name="a",
        pid=1,
        command="a",
        user="me",
        age_s=1.0,
        state="running",
        processes=(),
        run_folder=str(folder),
    )


def test_a_job_is_given_once_however_it_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path, "one", updates=7)
    found = live_jobs([job_here(folder)], [tmp_path, tmp_path])
    assert [(job.run, job.updates, job.state) for job in found] == [("one", 7, "training")]


def test_nothing_to_read_is_nothing(tmp_path: Path) -> None:
    assert live_jobs() == []
    assert live_jobs([job_here(tmp_path / "gone")], [tmp_path / "gone"]) == []


def test_one_whose_writer_was_killed_is_told_as_that(tmp_path: Path, gone_pid: int) -> None:
    write(tmp_path, "one", age_s=20, pid=gone_pid)
    [job] = live_jobs(roots=[tmp_path])
    assert job.state == "stalled"
    assert job.state_reason.startswith("whoever wrote this is gone")


def test_a_pid_that_another_process_has_by_now_is_not_the_writer(tmp_path: Path) -> None:
    write(tmp_path, "one", age_s=20, started_at_unix_s=1_000_000_000.0)
    [job] = live_jobs(roots=[tmp_path])
    assert job.state_reason.startswith("whoever wrote this is gone")


def test_one_that_is_silent_while_its_writer_lives_is_told_as_that(tmp_path: Path) -> None:
    write(tmp_path, "one", age_s=40, started_at_unix_s=time.time() + 1)
    [job] = live_jobs(roots=[tmp_path])
    assert job.state == "stalled"
    assert re.match(r"no news for [4-9]\d s", job.state_reason)  # it took us some time to look


def test_processes_of_other_machines_are_not_ours_to_see(tmp_path: Path, gone_pid: int) -> None:
    write(tmp_path, "near", age_s=10, host="elsewhere", pid=gone_pid)
    write(tmp_path, "far", age_s=40, host="elsewhere", pid=gone_pid)
    states = {job.run: job.state for job in live_jobs(roots=[tmp_path])}
    assert states == {"near": "training", "far": "stalled"}


def test_one_that_has_ended_is_given_for_some_minutes(tmp_path: Path) -> None:
    write(tmp_path, "just", age_s=60, state="ended", exit_code=0)
    write(tmp_path, "long-ago", age_s=ENDED_FOR_S + 60, state="ended", exit_code=0)
    assert [(job.run, job.state) for job in live_jobs(roots=[tmp_path])] == [("just", "ended")]


def test_one_that_was_killed_long_ago_is_not_given_for_ever(tmp_path: Path, gone_pid: int) -> None:
    write(tmp_path, "one", age_s=GONE_FOR_S + 60, pid=gone_pid)
    assert live_jobs(roots=[tmp_path]) == []


def test_what_is_broken_or_newer_is_noticed_and_left_out(tmp_path: Path) -> None:
    write(tmp_path, "good")
    (write(tmp_path, "broken") / LIVE_FILE).write_bytes(b'{"schema": "flatout.live/1", "run"')
    (write(tmp_path, "odd") / LIVE_FILE).write_bytes(b'{"schema": "flatout.live/1", "run": 3}')
    write(tmp_path, "newer", version=9)
    folder = write(tmp_path, "folder")
    (folder / LIVE_FILE).unlink()
    (folder / LIVE_FILE).mkdir()
    said: list[str] = []
    assert [job.run for job in live_jobs(roots=[tmp_path], notice=said.append)] == ["good"]
    assert len(said) == 4
