"""Kills small jobs of its own at chosen instants and looks at what is left of them."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import psutil

from flatout.learn.jobs.killed import CHECKPOINT, KEPT, SAVE_EVERY, read_progress
from flatout.records.errors import ChildFailed
from flatout.runtime.checkpoint.store import checkpoints, newest_complete

_DEADLINE_S = 60.0
_LOOK_S = 0.0005
_MOMENT_S = 0.005
# Steps since the last save at which a job is asked to stop.
_IN_BETWEEN = range(SAVE_EVERY // 4, SAVE_EVERY - 4)
_END_BYTES = 16

Way = Literal["plain", "careful"]
Child = subprocess.Popen[bytes]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Killed:
    """One job that was killed: how far it was, what it printed, and what was left."""

    way: Way
    signal: str
    instant: str
    exit_code: int
    steps_done: int
    # Of the newest checkpoint that can be read; 0 where there is none.
    steps_kept: int
    lines_printed: int
    # What a save was in the middle of, where one was: bytes there, and bytes of a whole one.
    half_bytes: int = 0
    whole_bytes: int = 0
    first_bytes: str = ""
    last_bytes: str = ""
    load_error: str = ""


@contextlib.contextmanager
def job(way: Way, folder: Path) -> Iterator[Child]:
    """A job of its own; it and what it started are gone afterwards."""
    folder.mkdir()
    with (folder / "log").open("wb") as log, (folder / "complaints").open("wb") as complaints:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "flatout.learn.jobs.killed", way, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=complaints,
            env={**_ordinary(), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        )
    try:
        yield child
    finally:
        _signal_all(child, signal.SIGKILL)
        child.wait()


def _ordinary() -> dict[str, str]:
    """What most jobs run in: Python keeps what it prints to a file in a buffer."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def _signal_all(child: Child, by: signal.Signals) -> None:
    """The job and all that it has started: its writer is a process of its own."""
    with contextlib.suppress(psutil.NoSuchProcess):
        one = psutil.Process(child.pid)
        for process in (one, *one.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(by)


def wait_for(child: Child, folder: Path, seen: Callable[[], bool], what: str) -> None:
    """Look until it is seen; a job that ends before, or that takes too long, is an error."""
    deadline = time.monotonic() + _DEADLINE_S
    while not seen():
        if child.poll() is not None or time.monotonic() > deadline:
            lines = (folder / "complaints").read_text(errors="replace").strip().splitlines()
            raise ChildFailed(
                f"the job to be killed never came to {what}" + (f": {lines[-1]}" if lines else ""),
                expected="a small job that trains and saves on this machine",
                remedy="is there room for some hundred MB in the folder for temporary files?",
            )
        time.sleep(_LOOK_S)


def freeze_when(child: Child, folder: Path, seen: Callable[[], bool], what: str) -> None:
    """Stop the clock for the job at an instant that is seen, so that it cannot pass before the kill comes."""
    while True:
        wait_for(child, folder, seen, what)
        _signal_all(child, signal.SIGSTOP)
        time.sleep(_MOMENT_S)
        if seen():
            return
        _signal_all(child, signal.SIGCONT)


def killed_while_saving(child: Child, folder: Path) -> Killed:
    """SIGKILL in the middle of a plain save, over the one before."""
    file = folder / CHECKPOINT
    wait_for(child, folder, lambda: read_progress(folder)[1] > 0, "its first save")
    whole = file.stat().st_size
    freeze_when(child, folder, lambda: 0 < file.stat().st_size < 0.9 * whole, "its second save")
    code = _end(child, signal.SIGKILL)
    data = file.read_bytes()
    return Killed(
        way="plain",
        signal="SIGKILL",
        instant="while it saved",
        exit_code=code,
        steps_done=read_progress(folder)[0],
        steps_kept=0,  # the reader of the file says otherwise where it can be read
        lines_printed=_lines(folder),
        half_bytes=len(data),
        whole_bytes=whole,
        first_bytes=data[:_END_BYTES].hex(" "),
        last_bytes=data[-_END_BYTES:].hex(" "),
    )


def killed_while_checkpointing(child: Child, folder: Path) -> Killed:
    """SIGKILL of the job and its writer in the middle of a careful save."""
    kept = folder / KEPT
    wait_for(child, folder, lambda: bool(checkpoints(kept)), "its first checkpoint")
    whole = _size(checkpoints(kept)[0].path)
    freeze_when(child, folder, lambda: 0 < _unfinished(kept) < 0.9 * whole, "its second checkpoint")
    code = _end(child, signal.SIGKILL)
    return Killed(
        way="careful",
        signal="SIGKILL",
        instant="while it saved",
        exit_code=code,
        steps_done=read_progress(folder)[0],
        steps_kept=_newest(kept),
        lines_printed=_lines(folder),
        half_bytes=_unfinished(kept),
        whole_bytes=whole,
    )


def told_to_stop(child: Child, folder: Path, way: Way) -> Killed:
    """SIGTERM between two saves, as schedulers and preempted machines send it."""

    def is_in_between() -> bool:
        done, _ = read_progress(folder)
        return done > SAVE_EVERY and done % SAVE_EVERY in _IN_BETWEEN

    wait_for(child, folder, is_in_between, "the middle between two saves")
    code = _end(child, signal.SIGTERM)
    done, saved = read_progress(folder)
    return Killed(
        way=way,
        signal="SIGTERM",
        instant="between two saves",
        exit_code=code,
        steps_done=done,
        steps_kept=_newest(folder / KEPT) if way == "careful" else saved,
        lines_printed=_lines(folder),
    )


def _end(child: Child, by: signal.Signals) -> int:
    # SIGTERM goes to the job alone, as from a scheduler; SIGKILL to all of it, as when a machine goes away.
    if by is signal.SIGKILL:
        _signal_all(child, by)
    else:
        child.send_signal(by)
    return child.wait(timeout=_DEADLINE_S)


def _newest(folder: Path) -> int:
    found = newest_complete(folder, lambda _stored, _problem: None)
    return found.step if found is not None else 0


def _unfinished(folder: Path) -> int:
    return sum(_size(path) for path in folder.glob(".partial-*"))


def _size(folder: Path) -> int:
    total = 0
    with contextlib.suppress(FileNotFoundError):
        for path in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                total += path.stat().st_size
    return total


def _lines(folder: Path) -> int:
    return (folder / "log").read_text(errors="replace").count("\n")
