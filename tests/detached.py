"""Processes as a machine has them: real ones, which belong to nobody that runs tests.

They are started by a process that ends at once, so that init inherits them: a job is not part of the tests'
own tree, as it would not be part of a user's second terminal.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil

from flatout.runtime.process_table import Table, read_table

T = TypeVar("T")
WAIT_S = 60.0
_START = """
import json, os, subprocess, sys
words, folder, environment = json.loads(sys.argv[1])
out = open(folder + "/output", "ab")
made = subprocess.Popen(words, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                        start_new_session=True)
print(made.pid)
os._exit(0)
"""


class Detached:
    """A job in a folder of its own; `pids` lists what it says of itself by `note`."""

    def __init__(self, folder: Path, *words: str, **variables: str) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "src"), **variables}
        order = json.dumps([words, str(folder), environment])
        done = subprocess.run(
            [sys.executable, "-c", _START, order], capture_output=True, text=True, check=True
        )
        self.pid = int(done.stdout)
        self._start = psutil.Process(self.pid).create_time()

    @classmethod
    def python(cls, folder: Path, source: str, *arguments: str, **variables: str) -> "Detached":
        """A script of this name, with `note(name)` to leave its pid."""
        folder.mkdir(parents=True, exist_ok=True)
        script = folder / "train.py"
        note = "import os\ndef note(name):\n    open(name + '.part', 'w').write(str(os.getpid()))\n"
        note += "    os.replace(name + '.part', name)\n"
        script.write_text(note + source)
        return cls(folder, sys.executable, str(script), *arguments, **variables)

    def noted(self, name: str) -> int:
        """The pid that one of its processes left under this name."""
        return int(until(lambda: (self.folder / name).read_text() if (self.folder / name).exists() else ""))

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text()

    def end(self) -> None:
        """Kill it and everything that it noted or started, whatever the test did."""
        with contextlib.suppress(psutil.Error):
            head = psutil.Process(self.pid)
            if head.create_time() == self._start:
                for one in [*head.children(recursive=True), head]:
                    with contextlib.suppress(psutil.Error):
                        one.kill()
        for process in psutil.process_iter():
            # Left behind: known by the folder that they work in.
            with contextlib.suppress(psutil.Error, OSError):
                if Path(process.cwd()) == self.folder:
                    process.kill()


def until(look: Callable[[], T | None], what: str = "it") -> T:
    """What `look` gives, once it gives anything."""
    deadline = time.monotonic() + WAIT_S
    while not (found := look()):
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.02)
    return found


def lives(pid: int) -> bool:
    """Whether the process is there, and no zombie."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    until(lambda: not lives(pid), f"the end of {pid}")


def table_of(*folders: Path) -> Table:
    """Only what works in these folders, and its parents: others' jobs on this machine are not the tests'."""
    whole = read_table()
    ours = {pid for pid in whole.by_pid if _works_in(pid, folders)}
    family = {one.pid for pid in ours for one in (*whole.ancestors_of(pid), *whole.descendants_of(pid))}
    return Table([one for pid, one in whole.by_pid.items() if pid in ours | family | {os.getpid()}])


def _works_in(pid: int, folders: tuple[Path, ...]) -> bool:
    with contextlib.suppress(psutil.Error, OSError):
        return any(Path(psutil.Process(pid).cwd()).is_relative_to(folder) for folder in folders)
    return False
