"""A whole job, watched: in the user's own terminal, files and environment, to its own end."""

import contextlib
import dataclasses
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from flatout.records.running import Alarm
from flatout.records.session import STOPPED_FILE, Order
from flatout.runtime.alarms import told
from flatout.runtime.command import JobCommand
from flatout.runtime.environment import watched_environment
from flatout.runtime.left_workers import end_workers_left_by

# These reach the job through us; Ctrl-C reaches it through the terminal, as it would without us.
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@dataclasses.dataclass(frozen=True)
class Ending:
    """How a process ended."""

    exit_code: int | None
    signal: int | None
    took_s: float
    # Workers that were left behind, stuck, and had to be killed.
    killed_workers: tuple[int, ...] = ()


def run_to_the_end(
    command: JobCommand,
    folder: Path,
    order: Mapping[str, Any],
    *,
    output_to_stderr: bool = False,
    environment: Mapping[str, str] | None = None,
    on_alarm: Callable[[Alarm], None] = lambda _alarm: None,
) -> Ending:
    """Run the job as the user would, with a session inside; signals, output and exit code are its own."""
    folder.mkdir(parents=True)
    path = folder.resolve() / "order.json"
    Order(folder=str(folder.resolve()), **order).write(path)
    variables = watched_environment(path, own_python=command.own_python) | dict(environment or {})
    began = time.monotonic()
    with _signals_passed_on() as passed_on, told(folder, on_alarm):
        child = subprocess.Popen(
            command.words, env=variables, stdout=sys.stderr.fileno() if output_to_stderr else None
        )
        passed_on.begin(child)
        code = _told(child.wait(), path.with_name(STOPPED_FILE))
    took_s = time.monotonic() - began
    killed = tuple(end_workers_left_by(str(path)))
    return Ending(code if code >= 0 else None, -code if code < 0 else None, took_s, killed)


def _told(code: int, stopped: Path) -> int:
    """How the job ended, in its own words where a launcher's would hide that it was only asked to stop."""
    with contextlib.suppress(OSError, ValueError):
        return int(stopped.read_text()) if code > 0 else code
    return code


class _PassedOn:
    """Signals for the job; those that come before it is there wait for it."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []

    def begin(self, child: "subprocess.Popen[bytes]") -> None:
        self._child = child
        for number in self._early:
            self(number, None)

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        if self._child is None:
            self._early.append(number)
            return
        with contextlib.suppress(ProcessLookupError):
            self._child.send_signal(number)


@contextlib.contextmanager
def _signals_passed_on() -> Iterator[_PassedOn]:
    pass_on = _PassedOn()
    # What is ignored stays so, for us and for the job: nohup wants that, and scripts of `flatout launch`.
    heard = [number for number in _PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN]
    found = {number: signal.signal(number, pass_on) for number in heard}
    # The terminal sends Ctrl-C to the job as well: what follows is the job's to say.
    found[signal.SIGINT] = signal.signal(signal.SIGINT, lambda _number, _frame: None)
    try:
        yield pass_on
    finally:
        for number, handler in found.items():
            signal.signal(number, handler)
