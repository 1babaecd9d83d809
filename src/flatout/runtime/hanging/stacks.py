"""Where a process stands: by py-spy, which sees native frames too, or by the fault handler inside of it."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sysconfig
import time
from pathlib import Path

import psutil

from flatout.records.hang import STACKS_FILE, STACKS_SIGNAL_ABOVE_MIN, Heartbeat, RankStanding

_OWN = str(Path(__file__).parents[2])
# The main thread comes last, and a process that is hardly given time pauses between two lines.
_WRITTEN_S = 0.5
_WAIT_S = 3.0
_PY_SPY_S = 20.0
_MOST_LINES = 80
# `  File "train.py", line 31 in step`, as the fault handler writes it.
_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.+)$')
_STANDARD = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})

# Innermost first: file, line, function.
Frame = tuple[str, int, str]


def where_it_stands(beat: Heartbeat) -> RankStanding:
    """The stack of one rank's main thread, and the line of the script in it."""
    try:
        state = psutil.Process(beat.pid).status()
    except psutil.NoSuchProcess:
        return RankStanding(rank=beat.rank, pid=beat.pid, updates=beat.updates, state="gone")
    threads, source = _by_py_spy(beat.pid), "py-spy"
    if not threads:
        threads, source = _by_fault_handler(beat), "the fault handler"
    frames = next(iter(threads.values()), [])
    own = [frame for frame in frames if _is_the_scripts(frame[0])]
    return RankStanding(
        rank=beat.rank,
        pid=beat.pid,
        updates=beat.updates,
        state=state,
        where=f"{_from_here(own[0][0])}:{own[0][1]} in {own[0][2]}" if own else None,
        call=frames[0][2] if frames else None,
        stack=_lines(threads),
        source=source if threads else "",
    )


def _by_py_spy(pid: int) -> dict[str, list[Frame]]:
    """By thread, the main one first."""
    tool = shutil.which("py-spy")
    if tool is None:
        return {}
    for more in (("--native",), ()):  # not every build of it, nor every machine, can do native frames
        with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError):
            done = subprocess.run(
                [tool, "dump", "--json", "--pid", str(pid), *more],
                capture_output=True,
                check=True,
                timeout=_PY_SPY_S,
            )
            threads = json.loads(done.stdout)
            threads.sort(key=lambda thread: thread["thread_name"] != "MainThread")
            return {
                f"{thread['thread_name'] or 'a thread'} ({thread['thread_id']})": [
                    (frame["filename"], int(frame["line"] or 0), frame["name"]) for frame in thread["frames"]
                ]
                for thread in threads
            }
    return {}


def _by_fault_handler(beat: Heartbeat) -> dict[str, list[Frame]]:
    """By thread; it names the main one last."""
    try:
        lines = _written_down(beat.pid, Path(beat.folder) / STACKS_FILE)
    except OSError:
        return {}
    threads: dict[str, list[Frame]] = {}
    for line in lines:
        matched = _FRAME.match(line)
        if matched is not None and threads:
            threads[next(reversed(threads))].append(
                (matched["file"], int(matched["line"]), matched["function"])
            )
        elif line.startswith(("Thread ", "Current thread ")):
            threads[line.partition(" (")[0]] = []
    return dict(reversed(threads.items()))


def _written_down(pid: int, path: Path) -> list[str]:
    """What the process adds to its file when it is asked to; raises OSError."""
    before, number = path.stat().st_size, signal.SIGRTMIN + STACKS_SIGNAL_ABOVE_MIN
    if not _catches(pid, number):
        return []
    os.kill(pid, number)
    asked_s = grown_s = time.monotonic()
    size = before
    while time.monotonic() < asked_s + _WAIT_S:
        time.sleep(0.1)
        now = path.stat().st_size
        if now != size:
            grown_s = time.monotonic()
        elif now > before and time.monotonic() > grown_s + _WRITTEN_S:
            break
        size = now
    with path.open(errors="replace") as file:
        file.seek(before)
        return file.read().splitlines()


def _catches(pid: int, number: int) -> bool:
    """Whether it has a handler: the signal would kill one that got this pid since."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def _from_here(file: str) -> str:
    """As short as a path can be."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


def _lines(threads: dict[str, list[Frame]]) -> tuple[str, ...]:
    lines = []
    for name, frames in threads.items():
        lines += [name, *(f"  {function} ({file}:{line})" for file, line, function in frames)]
    return tuple(lines[:_MOST_LINES])


def _is_the_scripts(file: str) -> bool:
    """Not an installed package, not the standard library, not native code."""
    parts = Path(file).parts
    if "site-packages" in parts or "dist-packages" in parts or file.startswith(("<", *_STANDARD)):
        return False
    return file.endswith(".py") and not file.startswith(_OWN)
