"""Jobs under `flatout run` that hang, crash, or do not end when asked: told, ended, started again."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.e2e.conftest import Run
from tests.e2e.jobs import QUICK

HANGS = (
    QUICK
    + """
def load(number):
    if number == 30 and not os.path.exists("lived"):
        open("lived", "w").close()
        time.sleep(600)  # stuck
import os
for number in range(60):
    load(number)
    update()
    time.sleep(0.02)
print("done")
"""
)


def line_of(script: str, mark: str) -> int:
    return next(at for at, line in enumerate(script.splitlines(), 1) if mark in line)


def begun(tmp_path: Path, *options: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "flatout", "run", *options, "train.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "FLATOUT_CACHE_DIR": str(tmp_path / "cache")},
    )


def test_a_job_that_hangs_is_told_with_its_line_ended_and_started_again(flatout: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HANGS)
    done = flatout("run", "--as-written", "--on-hang", "restart", "--hang-after", "6s", "train.py")
    assert done.returncode == 0, done.stderr
    assert "no update for" in done.stderr
    assert f"it is at train.py:{line_of(HANGS, '# stuck')} in load" in done.stderr
    assert "starting it again in 1 s" in done.stderr
    assert done.stdout == "done\n"


NEVER_STARTS = """
import time, torch
def connect():
    time.sleep(600)  # stuck
connect()
"""


def test_a_start_that_hangs_is_told_with_its_line_and_ended_where_its_limit_is_given(
    flatout: Run, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(NEVER_STARTS)
    done = flatout("run", "--as-written", "--on-hang", "stop", "--startup-limit", "8", "train.py")
    assert done.returncode != 0
    assert "no update yet" in done.stderr
    assert f"it is at train.py:{line_of(NEVER_STARTS, '# stuck')} in connect" in done.stderr
    assert "ending the job: it hung" in done.stderr


def test_a_job_that_is_stopped_and_goes_on_has_not_hung(tmp_path: Path) -> None:
    script = (
        QUICK
        + """
import itertools, os
for number in itertools.count():
    update()
    time.sleep(0.05)
    print(number, flush=True)
    if os.path.exists("enough"):
        break
print("ended", flush=True)
"""
    )
    (tmp_path / "train.py").write_text(script)
    job = begun(tmp_path, "--as-written", "--on-hang", "stop", "--hang-after", "6s")
    assert job.stdout is not None
    assert any(line.strip() == "20" for line in job.stdout)
    # Beside the script stands who sees whether a signal came to all.
    [child] = [one.pid for one in psutil.Process(job.pid).children() if "train.py" in one.cmdline()]
    os.kill(child, signal.SIGSTOP)
    time.sleep(9)
    assert Path(f"/proc/{child}/status").read_text().split("State:")[1].split()[0] == "T"  # it was stopped
    (tmp_path / "enough").touch()
    os.kill(child, signal.SIGCONT)
    rest, told = job.communicate(timeout=60)
    assert job.returncode == 0, told
    assert rest.splitlines()[-1] == "ended"
    assert "no update" not in told


def test_a_job_stuck_in_c_is_ended_when_its_grace_is_over(tmp_path: Path) -> None:
    """It cannot answer: Python's handlers run between two of its own instructions, and there are none."""
    script = (
        QUICK
        + """
import ctypes
update()
library, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
library.pthread_mutex_lock(mutex)
print("begins", flush=True)
library.pthread_mutex_lock(mutex)  # for ever, with the interpreter's lock held, whatever signal comes
"""
    )
    (tmp_path / "train.py").write_text(script)
    job = begun(tmp_path, "--protect", "--no-rehearsal", "--grace", "2s")
    assert job.stdout is not None
    assert job.stdout.readline() == "begins\n"
    job.send_signal(signal.SIGTERM)
    _, told = job.communicate(timeout=60)
    assert "it did not end within 2 s of being asked" in told
    assert job.returncode in (-9, 137)


@pytest.mark.full
def test_a_crash_is_tried_again_with_pauses_until_there_is_no_point(flatout: Run, tmp_path: Path) -> None:
    script = (
        QUICK
        + """
import os
lives = len(open("lives").read()) if os.path.exists("lives") else 0
open("lives", "a").write("x")
for number in range(5 + 5 * min(lives, 2)):
    update()
    time.sleep(0.02)
raise SystemExit(7)
"""
    )
    (tmp_path / "train.py").write_text(script)
    done = flatout("run", "--as-written", "--retries", "5", "train.py")
    assert done.returncode == 7
    # Each life came further than the one before, but the last.
    assert (tmp_path / "lives").read_text() == "xxxx"
    assert "it ended with code 7; starting it again in 4 s (3 of 5)" in done.stderr
    assert "twice without coming further" in done.stderr


@pytest.mark.full
def test_of_several_ranks_the_one_that_hangs_is_named(flatout: Run, tmp_path: Path) -> None:
    script = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.set_num_threads(1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(400):
    if number == 30 and dist.get_rank() == 1:
        time.sleep(600)  # stuck
    model(torch.randn(2, 4)).square().mean().backward()
    optimizer.step()
    time.sleep(0.02)
"""
    (tmp_path / "train.py").write_text(script)
    done = flatout(
        "run", "--as-written", "--on-hang", "stop", "--hang-after", "4s", "--nproc-per-node", "2", "train.py"
    )
    assert done.returncode != 0
    at = rf"rank 1 is (behind the others, )?at train\.py:{line_of(script, '# stuck')} in <module>"
    assert re.search(at, done.stderr), done.stderr
