"""Whatever ends a job under `flatout run`, nobody stays and the terminal is as it was."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.detached import Detached, kill, lives, until

NOTE = """
import os
def note(name):
    open(name + ".part", "w").write(str(os.getpid()))
    os.replace(name + ".part", name)
"""
# Each worker is stuck in its first sample: one where threads can run, one that holds the interpreter's lock.
STUCK = """
import ctypes, time
import torch
from torch.utils.data import DataLoader, Dataset

class Stuck(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, i):
        note(f"worker{i}")
        if i == 0:
            time.sleep(600)
        ctypes.PyDLL(None).sleep(600)

note("main")
for batch in DataLoader(Stuck(), batch_size=1, num_workers=WORKERS):
    pass
"""
# Children that outlive a parent who does not end them, and a parent who takes Ctrl-C as Python does.
CHILDREN = """
import multiprocessing, signal, sys, time
def work():
    note("child")
    while os.getppid() == parent:
        time.sleep(0.05)
if __name__ == "__main__":
    parent = os.getpid()
    multiprocessing.get_context("fork").Process(target=work, daemon=True).start()
    while not os.path.exists("child"):
        time.sleep(0.01)
"""
PRINTS = CHILDREN + '    note("main")\n    while True:\n        print("loss", flush=True); time.sleep(0.02)\n'
SAVES_LONG = CHILDREN + (
    "    def save(number, frame):\n"
    '        note("first")\n'
    "        signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "        time.sleep(600)\n"
    "    signal.signal(signal.SIGINT, save)\n"
    '    note("main")\n'
    "    time.sleep(600)\n"
)
SAVES_AND_ENDS = """
import time
try:
    note("main")
    time.sleep(600)
except KeyboardInterrupt:
    time.sleep(2)
    note("saved")
"""
# Takes the terminal that it is given as its own, as a login does.
LOGIN = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
RUN = (sys.executable, "-m", "flatout", "run", "--as-written", "train.py")


def noted(folder: Path, name: str) -> int:
    return int(until(lambda: (folder / name).read_text() if (folder / name).exists() else "", name))


def at_work_in(folder: Path) -> list[int]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if Path(process.cwd()) == folder and lives(process.pid):
                found.append(process.pid)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "work"
    made.mkdir()
    yield made
    for pid in at_work_in(made):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "FLATOUT_CACHE_DIR": str(tmp_path / "cache")}


# A killed parent, and workers that are stuck (fault 41)


def test_stuck_workers_of_a_killed_script_are_ended_and_named(folder: Path, tmp_path: Path) -> None:
    (folder / "train.py").write_text(NOTE + STUCK.replace("WORKERS", "2"))
    job = Detached(folder, *RUN, FLATOUT_CACHE_DIR=str(tmp_path / "cache"))
    main, workers = noted(folder, "main"), [noted(folder, f"worker{i}") for i in (0, 1)]
    assert all(psutil.Process(worker).ppid() == main for worker in workers)
    os.kill(main, signal.SIGKILL)
    until(lambda: not lives(job.pid), "the end of flatout run")
    assert not any(map(lives, workers))
    said = job.output
    assert "left behind" in said
    assert str(workers[1]) in said, "the one that could not look for itself"
    assert at_work_in(folder) == []


def test_a_stuck_worker_ends_when_all_who_could_end_it_are_killed(folder: Path, tmp_path: Path) -> None:
    (folder / "train.py").write_text(NOTE + STUCK.replace("WORKERS", "1"))
    job = Detached(folder, *RUN, FLATOUT_CACHE_DIR=str(tmp_path / "cache"))
    main, worker = noted(folder, "main"), noted(folder, "worker0")
    kill(job.pid)
    assert lives(main), "without flatout, the script trains on"
    assert lives(worker)
    kill(main)
    until(lambda: not lives(worker), "the end of a worker that nobody can end but itself")
    assert at_work_in(folder) == []


# Ctrl-C, twice, a closed terminal, a broken pipe (fault 42)


class Terminal:
    """`flatout run` in a terminal of its own."""

    def __init__(self, folder: Path, tmp_path: Path, source: str) -> None:
        (folder / "train.py").write_text(NOTE + source)
        self.master, slave = os.openpty()
        self.before = termios.tcgetattr(self.master)
        self.process = subprocess.Popen(
            [sys.executable, "-c", LOGIN, *RUN],
            cwd=folder,
            env=environment(tmp_path),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        os.set_blocking(self.master, False)
        self.said = b""

    def press_ctrl_c(self) -> None:
        os.write(self.master, b"\x03")

    def wait(self) -> int:
        deadline = time.monotonic() + 60
        while self.process.poll() is None and time.monotonic() < deadline:
            self._read()
            time.sleep(0.02)
        self._read()
        return self.process.wait(1)

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # nothing to read, or nobody writes any more
            while chunk := os.read(self.master, 1 << 16):
                self.said += chunk


def test_ctrl_c_ends_the_job_as_it_would_without_us(folder: Path, tmp_path: Path) -> None:
    terminal = Terminal(folder, tmp_path, PRINTS)
    noted(folder, "main")
    terminal.press_ctrl_c()
    assert terminal.wait() == -signal.SIGINT
    assert b"KeyboardInterrupt" in terminal.said, "it reached the script"
    assert b"loss" in terminal.said
    assert termios.tcgetattr(terminal.master) == terminal.before
    assert terminal.said.count(b"\x1b[?25l") == terminal.said.count(b"\x1b[?25h")
    until(lambda: at_work_in(folder) == [], "the end of everybody")
    os.close(terminal.master)


def test_a_sigint_that_no_terminal_sent_reaches_the_job(folder: Path, tmp_path: Path) -> None:
    (folder / "train.py").write_text(NOTE + PRINTS)
    job = Detached(folder, *RUN, FLATOUT_CACHE_DIR=str(tmp_path / "cache"))
    noted(folder, "main")
    os.kill(job.pid, signal.SIGINT)
    until(lambda: not lives(job.pid), "the end of flatout run")
    assert "KeyboardInterrupt" in job.output, "it reached the script"
    until(lambda: at_work_in(folder) == [], "the end of everybody")


def test_what_all_processes_are_sent_reaches_the_job_once(folder: Path, tmp_path: Path) -> None:
    """As a notebook interrupts, or a scheduler: a second one would end what the script saves."""
    (folder / "train.py").write_text(NOTE + SAVES_AND_ENDS)
    job = Detached(folder, *RUN, FLATOUT_CACHE_DIR=str(tmp_path / "cache"))
    noted(folder, "main")
    os.killpg(job.pid, signal.SIGINT)
    noted(folder, "saved")
    until(lambda: at_work_in(folder) == [], "the end of everybody")


def test_a_second_ctrl_c_reaches_a_job_that_takes_its_time(folder: Path, tmp_path: Path) -> None:
    terminal = Terminal(folder, tmp_path, SAVES_LONG)
    noted(folder, "main")
    terminal.press_ctrl_c()
    noted(folder, "first")
    assert terminal.process.poll() is None, "flatout waits while the script saves"
    terminal.press_ctrl_c()
    assert terminal.wait() == -signal.SIGINT
    assert termios.tcgetattr(terminal.master) == terminal.before
    until(lambda: at_work_in(folder) == [], "the end of everybody")
    os.close(terminal.master)


def test_a_closed_terminal_ends_the_job(folder: Path, tmp_path: Path) -> None:
    terminal = Terminal(folder, tmp_path, PRINTS)
    main = noted(folder, "main")
    os.close(terminal.master)
    assert terminal.process.wait(60) == -signal.SIGHUP
    assert not lives(main)
    until(lambda: at_work_in(folder) == [], "the end of everybody")


def test_a_reader_that_goes_away_ends_the_job_as_it_would_without_us(folder: Path, tmp_path: Path) -> None:
    (folder / "train.py").write_text(NOTE + PRINTS)
    with subprocess.Popen(
        RUN, cwd=folder, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        assert run.stdout.readline() == b"loss\n"
        run.stdout.close()
        said = run.stderr.read()
        assert run.wait(60) == 1
    assert b"BrokenPipeError" in said, "the script has seen it"
    assert b"defect" not in said
    until(lambda: at_work_in(folder) == [], "the end of everybody")


def test_a_signal_before_the_script_runs_is_not_lost(folder: Path, tmp_path: Path) -> None:
    (folder / "train.py").write_text(NOTE + "import time\nnote('main')\ntime.sleep(600)\n")
    with subprocess.Popen(RUN, cwd=folder, env=environment(tmp_path), stderr=subprocess.DEVNULL) as run:
        until(lambda: list(folder.glob(".flatout/runs/*/job")), "its folder")
        run.send_signal(signal.SIGTERM)
        assert run.wait(60) == -signal.SIGTERM
    until(lambda: at_work_in(folder) == [], "the end of everybody")


WAITS_FOR_THE_READER = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
again = os.path.exists("main")
note("main")
while not os.path.exists("gone"):
    time.sleep(0.01)
"""
FAILS_TWICE = WAITS_FOR_THE_READER + "sys.exit(7 if again else 3)\n"


@pytest.mark.parametrize(
    ("script", "care", "sent", "code"),
    [
        (FAILS_TWICE, ("--retries", "1"), 0, 7),
        (WAITS_FOR_THE_READER + "time.sleep(600)\n", ("--grace", "1s"), signal.SIGTERM, -signal.SIGKILL),
        (FAILS_TWICE, ("--json",), 0, 3),
    ],
    ids=["a second start", "an end after its grace", "no document"],
)
def test_a_job_is_cared_for_when_nobody_reads_what_we_say(
    folder: Path, tmp_path: Path, script: str, care: tuple[str, ...], sent: int, code: int
) -> None:
    (folder / "train.py").write_text(NOTE + script)
    words = (*RUN[:-1], *care, RUN[-1])
    with subprocess.Popen(
        words, cwd=folder, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        noted(folder, "main")
        run.stdout.close()
        run.stderr.close()
        (folder / "gone").touch()
        run.send_signal(sent)
        assert run.wait(60) == code
    [kept] = folder.glob(".flatout/runs/*/job.json")
    assert json.loads(kept.read_text())["exit_code"] == (code if code > 0 else None)
    until(lambda: at_work_in(folder) == [], "the end of everybody")
