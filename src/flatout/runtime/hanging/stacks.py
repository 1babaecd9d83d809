"""Where a process stands: by py-spy, which sees native frames too, or by the fault handler inside of it."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil

from flatout.records.hang import STACKS_FILE, STACKS_SIGNAL_ABOVE_MIN, Heartbeat, RankStanding

_WAIT_S = 3.0
_PY_SPY_S = 20.0
_MOST_LINES = 80
# `    step (train.py:31)` of py-spy, and `  File "train.py", line 31 in step` of the fault handler.
_FRAMES = (
    re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.+)$'),
    re.compile(r"^\s+(?P<function>\S.*?) \((?P<file>[^():]+\.py):(?P<line>\d+)\)$"),
)


def where_it_stands(beat: Heartbeat) -> RankStanding:
    """The stack of one rank's main thread, and the line of the script in it."""
    try:
        state = psutil.Process(beat.pid).status()
    except psutil.NoSuchProcess:
        return RankStanding(rank=beat.rank, pid=beat.pid, updates=beat.updates, state="gone")
    lines, source = _by_py_spy(beat.pid), "py-spy"
    if not lines:
        lines, source = _by_fault_handler(beat), "the fault handler"
    frames = _frames(_main_thread(lines))
    own = [frame for frame in frames if _is_the_scripts(frame[0])]
    return RankStanding(
        rank=beat.rank,
        pid=beat.pid,
        updates=beat.updates,
        state=state,
        where=f"{own[0][0]}:{own[0][1]}" if own else None,
        call=frames[0][2] if frames else None,
        stack=tuple(lines[:_MOST_LINES]),
        source=source if lines else "",
    )


def _by_py_spy(pid: int) -> list[str]:
    tool = shutil.which("py-spy")
    if tool is None:
        return []
    for more in (("--native",), ()):  # not every build of it, nor every machine, can do native frames
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(
                [tool, "dump", "--pid", str(pid), *more],
                capture_output=True,
                text=True,
                check=False,
                timeout=_PY_SPY_S,
            )
            if done.returncode == 0 and "Thread" in done.stdout:
                return done.stdout.splitlines()
    return []


def _by_fault_handler(beat: Heartbeat) -> list[str]:
    path = Path(beat.folder) / STACKS_FILE
    try:
        before = path.stat().st_size
        os.kill(beat.pid, signal.SIGRTMIN + STACKS_SIGNAL_ABOVE_MIN)
    except OSError:
        return []
    deadline, size = time.monotonic() + _WAIT_S, before
    while time.monotonic() < deadline:
        time.sleep(0.1)
        now = path.stat().st_size
        if now > before and now == size:
            break
        size = now
    with path.open(errors="replace") as file:
        file.seek(before)
        return file.read().splitlines()


def _main_thread(lines: list[str]) -> list[str]:
    """Of all threads, the one that runs the script: the fault handler names it last, py-spy by its name."""
    starts = [at for at, line in enumerate(lines) if line.startswith(("Thread ", "Current thread "))]
    parts = [lines[at:end] for at, end in zip(starts, [*starts[1:], len(lines)], strict=True)]
    named = [part for part in parts if "MainThread" in part[0]]
    return (named or parts[-1:] or [[]])[0]


def _frames(lines: list[str]) -> list[tuple[str, int, str]]:
    """Innermost first: file, line, function."""
    found = []
    for line in lines:
        for pattern in _FRAMES:
            matched = pattern.match(line)
            if matched is not None:
                found.append((matched["file"], int(matched["line"]), matched["function"]))
                break
    return found


def _is_the_scripts(file: str) -> bool:
    parts = Path(file).parts
    is_installed = "site-packages" in parts or "dist-packages" in parts
    # py-spy shortens names of installed packages to what follows the folder that they are in.
    is_library = parts[0] in ("torch", "flatout", "triton", "numpy") or any(
        part.startswith("python3") for part in parts
    )
    return not (is_installed or is_library or file.startswith("<") or (len(parts) > 1 and "flatout" in parts))
