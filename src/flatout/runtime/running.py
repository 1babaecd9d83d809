"""A whole job, watched: in the user's own terminal, files and environment, to its own end."""

import contextlib
import dataclasses
import math
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from flatout.records.hang import Hang
from flatout.records.running import Alarm
from flatout.records.session import ASKED_TO_STOP_FILE, Order
from flatout.runtime.alarms import told
from flatout.runtime.aside import start_aside
from flatout.runtime.command import JobCommand
from flatout.runtime.environment import watched_environment
from flatout.runtime.group_signals import Lookout
from flatout.runtime.hanging.watching import hangs_told
from flatout.runtime.left_workers import end_all_of, end_workers_left_by

# These reach the job through us, where they were sent to us alone.
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)
_ASKING = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGINT)
_LOOK_S = 0.5


@dataclasses.dataclass(frozen=True)
class Ending:
    """How a process ended."""

    exit_code: int | None
    signal: int | None
    took_s: float
    # Workers that were left behind, stuck, and had to be killed.
    killed_workers: tuple[int, ...] = ()
    hangs: tuple[Hang, ...] = ()
    # A signal that reached the job through us: it was asked to end.
    asked: int | None = None
    # Whether we ended it: it hung, or did not end when it was asked.
    ended_by_us: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Care:
    """What to do when a job stands still, or does not end when it is asked."""

    # Silent for how long; None: far longer than usual.
    hang_after_s: float | None = None
    ends_hangs: bool = False
    # Without a first update for how long; and whether that is an end as well, or only told.
    startup_s: float = math.inf
    ends_starts: bool = False
    # After a signal to stop, how long it may take; None: as long as it likes.
    grace_s: float | None = None
    tell: Callable[[str], None] = lambda _text: None
    # Told of each hang, and when it is over.
    on_hang: Callable[[Hang], None] = lambda _hang: None
    on_going: Callable[[], None] = lambda: None


def run_to_the_end(
    command: JobCommand,
    folder: Path,
    order: Mapping[str, Any],
    *,
    output_to_stderr: bool = False,
    environment: Mapping[str, str] | None = None,
    on_alarm: Callable[[Alarm], None] = lambda _alarm: None,
    care: Care | None = None,
) -> Ending:
    """Run the job as the user would, with a session inside; signals, output and exit code are its own."""
    folder.mkdir(parents=True)
    path = folder.resolve() / "order.json"
    Order(folder=str(folder.resolve()), **order).write(path)
    variables = watched_environment(path, own_python=command.own_python) | dict(environment or {})
    began = time.monotonic()
    watchman = _Watchman(care or Care(), str(path))
    with _signals_passed_on() as passed_on, told(folder, on_alarm), watchman.on_duty(folder, passed_on):
        child = subprocess.Popen(
            command.words, env=variables, stdout=sys.stderr.fileno() if output_to_stderr else None
        )
        passed_on.begin(child)
        code = _told(child.wait(), path.with_name(ASKED_TO_STOP_FILE))
    took_s = time.monotonic() - began
    killed = tuple(end_workers_left_by(str(path)))
    return Ending(
        code if code >= 0 else None,
        -code if code < 0 else None,
        took_s,
        killed,
        hangs=tuple(watchman.hangs),
        asked=passed_on.last,
        ended_by_us=watchman.ended,
    )


class _Watchman:
    """Stands by while a job runs: tells when it hangs, and ends it where that was wished."""

    def __init__(self, care: Care, order: str) -> None:
        self._care = care
        self._order = order
        self.hangs: list[Hang] = []
        self.ended = ""

    @contextlib.contextmanager
    def on_duty(self, folder: Path, passed_on: "_PassedOn") -> Iterator[None]:
        over = threading.Event()
        patience = start_aside(lambda: self._lose_patience(passed_on, over), "flatout-patience")
        try:
            limits = (self._care.hang_after_s, self._care.startup_s)
            with hangs_told(folder, self._hangs, self._goes_on, *limits):
                yield
        finally:
            over.set()
            patience.join()

    def _hangs(self, hang: Hang) -> None:
        self.hangs.append(hang)
        self._care.on_hang(hang)
        self._care.tell(hang.words())
        if self._care.ends_hangs and (hang.after_update or self._care.ends_starts):
            self._end("it hung")

    def _goes_on(self) -> None:
        self._care.on_going()
        self._care.tell("it goes on again")

    def _lose_patience(self, passed_on: "_PassedOn", over: threading.Event) -> None:
        while not over.wait(_LOOK_S):
            asked_s, grace_s = passed_on.asked_s, self._care.grace_s
            if asked_s is not None and grace_s is not None and time.monotonic() - asked_s > grace_s:
                self._end(f"it did not end within {grace_s:.0f} s of being asked")
                return

    def _end(self, why: str) -> None:
        self.ended = self.ended or why
        self._care.tell(f"ending the job: {why}")
        end_all_of(self._order)


def _told(code: int, stopped: Path) -> int:
    """How the job ended, in its own words where a launcher's would hide that it was only asked to stop."""
    with contextlib.suppress(OSError, ValueError):
        return int(stopped.read_text()) if code > 0 else code
    return code


class _PassedOn:
    """Signals for the job; those that come before it is there wait for it."""

    def __init__(self, lookout: Lookout) -> None:
        self._lookout = lookout
        self._child: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []
        # The last one that asks a job to end, and when the first came.
        self.last: int | None = None
        self.asked_s: float | None = None

    def begin(self, child: "subprocess.Popen[bytes]") -> None:
        self._child = child
        for number in self._early:  # the job was not there when they came, to us or to all
            child.send_signal(number)

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        if number in _ASKING:
            self.last = number
            self.asked_s = self.asked_s or time.monotonic()
        if self._child is None:
            self._early.append(number)
        elif number == signal.SIGHUP:
            # A terminal that goes away tells its leader alone, and at once the job cannot print any more.
            self._pass_on(number)
        if self._lookout.saw_it(number) or self._child is None or number == signal.SIGHUP:
            return  # the job has it as well: what follows is the job's to say
        self._pass_on(number)

    def _pass_on(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._child is not None:
                self._child.send_signal(number)


@contextlib.contextmanager
def _signals_passed_on() -> Iterator[_PassedOn]:
    lookout = Lookout()
    pass_on = _PassedOn(lookout)
    # What is ignored stays so, for us and for the job: nohup wants that, and scripts of `flatout launch`.
    heard = [number for number in _PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN]
    found = {number: signal.signal(number, pass_on) for number in heard}
    try:
        yield pass_on
    finally:
        for number, handler in found.items():
            signal.signal(number, handler)
        lookout.end()
