"""Watches a job's heartbeats from Flatout's own process."""

import contextlib
import dataclasses
import math
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from flatout.records.hang import HEARTBEAT_FILE, Hang, Heartbeat, read_heartbeat
from flatout.records.session import RANKS_FOLDER, STARTING_FOLDER
from flatout.runtime.aside import start_aside
from flatout.runtime.hanging.culprit import culprit_of
from flatout.runtime.hanging.stacks import where_it_stands

_LOOK_S = 1.0
# What a job may be silent for: this, or so many times its usual step, or its longest silence so far.
_LEAST_S = 60.0
_TIMES_USUAL = 30.0
_TIMES_LONGEST = 3.0
_RECENT = 200


class Silence:
    """How long a job is silent, and for how long it may be."""

    def __init__(self, limit_s: float | None = None) -> None:
        self._limit_s = limit_s
        self._steps: list[float] = []
        self._updates = 0
        self._updated_s = 0.0
        self._longest_s = 0.0
        self._sign_s = math.inf
        # Time in which the job was stopped (SIGSTOP, a debugger) is not its own.
        self._awake_since = 0.0

    def look(self, beats: list[Heartbeat], *, is_stopped: bool, now_s: float) -> float | None:
        """For how long it has been silent, if that is too long."""
        if not beats:
            return None
        sign_s = min(beat.sign_s for beat in beats)
        self._learn(max(beats, key=lambda beat: beat.updates))
        # Only a silence that has ended is one that the job may have again.
        self._longest_s = max(self._longest_s, sign_s - max(self._sign_s, self._awake_since))
        self._sign_s = sign_s
        if is_stopped:
            self._awake_since = now_s
            return None
        silent_s = now_s - max(sign_s, self._awake_since)
        return silent_s if silent_s > self.limit_s else None

    @property
    def limit_s(self) -> float:
        """How long it may be silent just now."""
        if self._limit_s is not None:
            return self._limit_s
        return max(_LEAST_S, _TIMES_USUAL * self.usual_s, _TIMES_LONGEST * self._longest_s)

    @property
    def usual_s(self) -> float:
        """The median of its last steps."""
        return statistics.median(self._steps) if self._steps else 0.0

    def _learn(self, beat: Heartbeat) -> None:
        if self._updates and beat.updates > self._updates:
            self._steps.append((beat.updated_s - self._updated_s) / (beat.updates - self._updates))
            del self._steps[:-_RECENT]
        if beat.updates != self._updates:
            self._updates, self._updated_s = beat.updates, beat.updated_s


@contextlib.contextmanager
def hangs_told(
    folder: Path,
    tell: Callable[[Hang], None],
    goes_on: Callable[[], None],
    limit_s: float | None = None,
    startup_s: float = math.inf,
) -> Iterator[None]:
    """Tell of each hang, and of its end where there is one; and of a start without an update for so long."""
    ended = threading.Event()
    silence = Silence(limit_s)
    began_s = time.monotonic()

    def watch() -> None:
        # The newest sign of life when it was told of; None while there is nothing to tell.
        told_at_s: float | None = None
        told_of_start = False
        while not ended.wait(_LOOK_S):
            beats = read_heartbeats(folder)
            if not beats:
                starting_s = time.monotonic() - began_s
                if starting_s > startup_s and not told_of_start and not ended.is_set():
                    told_of_start = True
                    tell(_no_start(read_heartbeats(folder, STARTING_FOLDER), starting_s))
                continue
            if told_of_start:
                told_of_start = False
                goes_on()
            living, is_stopped = _living(beats)
            silent_s = silence.look(living, is_stopped=is_stopped, now_s=time.monotonic())
            if not living:
                continue  # it ends, or makes room for other processes
            newest_s = max(beat.sign_s for beat in living)
            if told_at_s is not None:
                # Whoever looks at its stacks stops it for an instant, which is no sign of life.
                if silent_s is None and newest_s > told_at_s:
                    told_at_s = None
                    goes_on()
            elif silent_s is not None and not ended.is_set():
                told_at_s = newest_s
                tell(_hang(beats, silent_s, silence.usual_s))

    thread = start_aside(watch, "flatout-hangs")
    try:
        yield
    finally:
        ended.set()
        thread.join()


def read_heartbeats(folder: Path, where: str = RANKS_FOLDER) -> list[Heartbeat]:
    """Of all ranks that have made an update, by rank; of its processes, the one that made the last.

    Of those that are starting, the first that lives: others are its helpers.
    """
    is_starting = where == STARTING_FOLDER
    newest: dict[int, Heartbeat] = {}
    for path in (folder / where).glob(f"*/{HEARTBEAT_FILE}"):
        beat = read_heartbeat(path)
        if beat is None or not (beat.updates or (is_starting and _living([beat])[0])):
            continue
        had = newest.get(beat.rank)
        is_better = had is None or (had.updated_s > beat.updated_s) == is_starting
        if is_better:
            newest[beat.rank] = beat
    return [newest[rank] for rank in sorted(newest)]


def _living(beats: list[Heartbeat]) -> tuple[list[Heartbeat], bool]:
    """Those whose process lives, and whether any is stopped: a rank that has ended keeps silent for ever."""
    living, is_stopped = [], False
    for beat in beats:
        with contextlib.suppress(psutil.Error):
            status = psutil.Process(beat.pid).status()
            if status not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                living.append(beat)
            is_stopped = is_stopped or status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    return living, is_stopped


def _no_start(beats: list[Heartbeat], silent_s: float) -> Hang:
    """Processes that have loaded torch tell where they are; there may be none yet."""
    living, _ = _living(beats)
    if not living:
        return Hang(
            after_update=0,
            silent_s=silent_s,
            usual_s=None,
            ranks=(),
            culprit=None,
            reason="no process of it that lives has loaded torch",
        )
    return dataclasses.replace(_hang(living, silent_s, 0.0), after_update=0, usual_s=None)


def _hang(beats: list[Heartbeat], silent_s: float, usual_s: float) -> Hang:
    ranks = tuple(where_it_stands(beat) for beat in beats)
    culprit, reason = culprit_of(ranks)
    return Hang(
        after_update=max(beat.updates for beat in beats),
        silent_s=silent_s,
        usual_s=usual_s,
        ranks=ranks,
        culprit=culprit,
        reason=reason,
    )
