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
from flatout.records.session import Order
from flatout.runtime.alarms import told
from flatout.runtime.command import JobCommand
from flatout.runtime.environment import watched_environment

# These reach the job through us; Ctrl-C reaches it through the terminal, as it would without us.
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@dataclasses.dataclass(frozen=True)
class Ending:
    """How a process ended."""

    exit_code: int | None
    signal: int | None
    took_s: float


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
    child = subprocess.Popen(
        command.words, env=variables, stdout=sys.stderr.fileno() if output_to_stderr else None
    )
    with _signals_passed_on(child), told(folder, on_alarm):
        code = child.wait()
    took_s = time.monotonic() - began
    return Ending(None, -code, took_s) if code < 0 else Ending(code, None, took_s)


@contextlib.contextmanager
def _signals_passed_on(child: "subprocess.Popen[bytes]") -> Iterator[None]:
    def pass_on(number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(number)

    found = {number: signal.signal(number, pass_on) for number in _PASSED_ON}
    # The terminal sends Ctrl-C to the job as well: what follows is the job's to say.
    found[signal.SIGINT] = signal.signal(signal.SIGINT, lambda _number, _frame: None)
    try:
        yield
    finally:
        for number, handler in found.items():
            signal.signal(number, handler)
