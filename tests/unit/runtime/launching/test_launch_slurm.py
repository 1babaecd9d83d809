"""The batch script for Slurm, run by bash around a real `flatout run`; srun and scontrol are stand-ins."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flatout.records.launch import LaunchJob
from flatout.runtime.launching.slurm import draft_slurm
from tests.fakes import slurm_tools
from tests.unit.runtime.launching.conftest import Make
from tests.unit.runtime.launching.test_shell_words import HOSTILE

# Notes what it is told, has a child that would die of any signal, and saves before it ends.
SCRIPT = """
import os, signal, subprocess, sys, time
node = os.environ["SLURM_NODEID"]
def note(text):
    with open("notes-" + node, "a") as notes:
        notes.write(text + "\\n")
told = []
signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
child = subprocess.Popen(["sleep", "60"])
note("up")
while not told:
    time.sleep(0.02)
time.sleep(float(os.environ.get("SAVING_S_" + node, "0.1")))
note("child " + str(child.poll()) + ", told " + str(len(told)))
child.kill()
child.wait()
note("saved")
sys.exit(int(os.environ.get("ENDS_WITH", "143")))
"""


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    return tmp_path / "bin"


@pytest.fixture
def batch(tmp_path: Path, bin_folder: Path) -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    """`batch(job, ENDS_WITH="0")`: the script of a job, started; ended with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(job: LaunchJob, **environment: str) -> "subprocess.Popen[bytes]":
        (tmp_path / "job.sbatch").write_text(draft_slurm(job).text)
        variables = {**slurm_tools.install(bin_folder), **environment}
        started.append(subprocess.Popen(["bash", "job.sbatch"], cwd=tmp_path, env=variables))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


def a_job(make_job: Make, tmp_path: Path, *words: str, **options: Any) -> LaunchJob:
    job = make_job("slurm", *words, **{"python": sys.executable, "plan": None, "gpus": 0, **options})
    (tmp_path / "train.py").write_text(SCRIPT)
    return job


def wait_for(folder: Path, *lines: str, nodes: int = 1) -> None:
    end = time.monotonic() + 60
    files = [folder / f"notes-{node}" for node in range(nodes)]
    while not all(file.exists() and set(lines) <= set(file.read_text().splitlines()) for file in files):
        assert time.monotonic() < end, lines
        time.sleep(0.02)


def test_the_program_receives_its_words_as_they_were_given(
    make_job: Make, tmp_path: Path, batch: Callable[..., "subprocess.Popen[bytes]"]
) -> None:
    job = a_job(make_job, tmp_path, "train.py", *HOSTILE, environment=("A=$(B) 'c'\n",))
    (tmp_path / "train.py").write_text(
        "import os, sys\nopen('seen', 'w', newline='').write('\\0'.join([*sys.argv[1:], os.environ['A']]))\n"
    )
    assert batch(job).wait(60) == 0
    with (tmp_path / "seen").open(newline="") as seen:
        assert seen.read().split("\0") == [*HOSTILE, "$(B) 'c'\n"]


def test_before_its_time_is_over_the_job_saves_and_is_put_back(
    make_job: Make, tmp_path: Path, bin_folder: Path, batch: Callable[..., "subprocess.Popen[bytes]"]
) -> None:
    running = batch(a_job(make_job, tmp_path))
    wait_for(tmp_path, "up")
    running.send_signal(signal.SIGUSR1)
    assert running.wait(60) == 143
    # The child, which has no answer to USR1, lives: only the job was told, and by SIGTERM.
    assert (tmp_path / "notes-0").read_text().splitlines() == ["up", "child None, told 1", "saved"]
    assert slurm_tools.asked_for(bin_folder) == ["requeue 7"]


@pytest.mark.parametrize("told_by", [signal.SIGUSR1, signal.SIGTERM])
def test_no_node_is_killed_while_it_saves(
    make_job: Make, tmp_path: Path, bin_folder: Path, told_by: signal.Signals
) -> None:
    # One of two nodes is done with saving long before the other. torchrun would need torch: run without it.
    text = draft_slurm(a_job(make_job, tmp_path, nodes=2)).text
    torchrun = [line for line in text.splitlines() if "torch.distributed.run" in line or "rdzv" in line]
    for line in torchrun:
        text = text.replace(line + "\n", "")
    (tmp_path / "job.sbatch").write_text(text)
    preempted = "2026-11-16T10:54:36" if told_by == signal.SIGTERM else "None"
    more = {"SAVING_S_1": "2", "FAKE_PREEMPT_TIME": preempted}
    variables = {**slurm_tools.install(bin_folder), **more}
    running = subprocess.Popen(["bash", "job.sbatch"], cwd=tmp_path, env=variables)
    with contextlib.ExitStack() as end:
        end.callback(running.kill)
        wait_for(tmp_path, "up", nodes=2)
        running.send_signal(told_by)
        if told_by == signal.SIGTERM:
            tell_the_step(tmp_path)
        assert running.wait(60) == 143
    wait_for(tmp_path, "saved", nodes=2)
    assert slurm_tools.asked_for(bin_folder) == ["requeue 7"]


def tell_the_step(folder: Path) -> None:
    """SIGTERM for every process of the step, as Slurm gives it."""
    found = subprocess.run(["pgrep", "-f", f"{sys.executable} train.py"], capture_output=True, text=True)
    own = [int(pid) for pid in found.stdout.split() if works_in(pid, folder)]
    for group in {os.getpgid(pid) for pid in own}:
        os.killpg(group, signal.SIGTERM)


def works_in(pid: str, folder: Path) -> bool:
    """Scripts of other tests have the same name, and may end while we look."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cwd").readlink() == folder
    return False


@pytest.mark.parametrize(
    ("environment", "options", "code"),
    [
        pytest.param({"ENDS_WITH": "0"}, {}, 0, id="it was done"),
        pytest.param({"SLURM_RESTART_COUNT": "3"}, {"restarts": 3}, 143, id="often enough"),
        pytest.param({}, {"restarts": 0}, 143, id="never"),
    ],
)
def test_a_job_that_was_told_is_not_always_put_back(
    make_job: Make,
    tmp_path: Path,
    bin_folder: Path,
    batch: Callable[..., "subprocess.Popen[bytes]"],
    environment: dict[str, str],
    options: dict[str, int],
    code: int,
) -> None:
    running = batch(a_job(make_job, tmp_path, **options), **environment)
    wait_for(tmp_path, "up")
    running.send_signal(signal.SIGUSR1)
    assert running.wait(60) == code
    assert slurm_tools.asked_for(bin_folder) == []


def test_a_job_that_fails_by_itself_stays_failed(
    make_job: Make, tmp_path: Path, bin_folder: Path, batch: Callable[..., "subprocess.Popen[bytes]"]
) -> None:
    job = a_job(make_job, tmp_path)
    (tmp_path / "train.py").write_text("raise SystemExit(9)\n")
    assert batch(job).wait(60) == 9
    assert slurm_tools.asked_for(bin_folder) == []


@pytest.mark.parametrize(("preempted", "asked"), [("2026-11-16T10:54:36", ["requeue 7"]), ("None", [])])
def test_what_must_make_room_is_put_back_and_what_was_cancelled_is_not(
    make_job: Make,
    tmp_path: Path,
    bin_folder: Path,
    batch: Callable[..., "subprocess.Popen[bytes]"],
    preempted: str,
    asked: list[str],
) -> None:
    running = batch(a_job(make_job, tmp_path), FAKE_PREEMPT_TIME=preempted)
    wait_for(tmp_path, "up")
    running.send_signal(signal.SIGTERM)  # Slurm tells all at once: the shell, and every process of the step
    tell_the_step(tmp_path)
    assert running.wait(60) == 143
    assert (tmp_path / "notes-0").read_text().splitlines()[-1] == "saved"
    assert slurm_tools.asked_for(bin_folder) == asked


def options_in(job: LaunchJob) -> list[str]:
    lines = draft_slurm(job).text.splitlines()
    return [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]


def test_slurm_is_asked_for_what_was_asked_for(make_job: Make) -> None:
    job = make_job(
        "slurm",
        nodes=4,
        gpus=8,
        gpu="h100-80gb",
        cpus=32,
        memory_bytes=64 << 30,
        time_s=25 * 3600,
        grace_s=300,
        settings={"partition": "gpu", "account": "team", "qos": "high"},
    )
    assert set(options_in(job)) >= {
        *("--nodes=4", "--ntasks-per-node=1", "--gres=gpu:h100:8", "--cpus-per-task=32", "--mem=65536M"),
        *("--time=1-01:00:00", "--signal=B:USR1@300", "--requeue", "--open-mode=append"),
        *("--partition=gpu", "--account=team", "--qos=high"),
    }
    text = draft_slurm(job).text
    assert "srun --nodes=4 --ntasks=4 --cpus-per-task=32 --kill-on-bad-exit=1" in text
    assert "--nnodes=4 --nproc-per-node=8 --rdzv-backend=c10d" in text


def test_no_word_of_the_job_becomes_an_option_of_slurms(make_job: Make) -> None:
    job = make_job("slurm", "train.py", "\n#SBATCH --nodes=99\n", environment=("A=\n#SBATCH --nodes=98",))
    assert "--nodes=1" in options_in(job)
    assert not any("99" in option or "98" in option for option in options_in(job))
