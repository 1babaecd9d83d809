"""Looks at this machine all the time, in threads of its own, so that whoever asks never waits.

Each vendor has a thread: a driver that blocks makes its own devices stale and holds up nobody else.
Processes, which cost more, and live jobs have one each, too.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from flatout.hardware.machine import default_sources
from flatout.hardware.protocol import DeviceSource
from flatout.monitor.history import DeviceHistory
from flatout.monitor.jobs_seen import JobsSeen
from flatout.monitor.jobs_watch import JobsWatch
from flatout.monitor.source_watch import SourceWatch, error_line
from flatout.records.device import Device, DeviceSample
from flatout.records.live import LiveJob
from flatout.records.processes import JobHere
from flatout.records.watching import Frame, HostSample
from flatout.runtime.live_jobs import live_jobs

LIVE_EVERY_S = 2.0
# The machine's own figures, and the CPU's, are read no more often than this.
HOST_EVERY_S = 2.0
# What is dear to read of a GPU, such as what each process does with it: 1.5 ms of a core on an H200.
THOROUGHLY_EVERY_S = 10.0
# How long a thread that does not end is waited for; a blocked driver keeps nobody from leaving.
_CLOSING_S = 0.5

# Looking at processes takes at most this share of a core, however many there are, unless that were too rare.
_JOBS_SHARE_MOST = 0.0006
_JOBS_PAUSE_MOST_S = 30.0

# Something that the last look lacked is noticed this soon.
_SOON_S = 0.05
_PARTS = ("processes", "live jobs", "host")

LookForLive = Callable[[Sequence[JobHere], Sequence[Path]], Sequence[LiveJob]]


class MachineSampler:
    """A context manager; inside, `frame()` gives the newest look at any time, and `history()` the day."""

    def __init__(
        self,
        sources: Sequence[DeviceSource] | None = None,
        every_s: float = 1.0,
        jobs_every_s: float = 5.0,
        roots: Sequence[Path] = (),
        *,
        thoroughly_every_s: float = THOROUGHLY_EVERY_S,
        jobs: JobsWatch | None = None,
        look_for_live: LookForLive = live_jobs,
        now_unix_s: Callable[[], float] = time.time,
    ) -> None:
        self._sources = default_sources() if sources is None else list(sources)
        self._watches = [
            SourceWatch(
                source,
                max(every_s, HOST_EVERY_S) if source.vendor == "cpu" else every_s,
                thoroughly_every_s=thoroughly_every_s,
                now_unix_s=now_unix_s,
            )
            for source in self._sources
        ]
        self._every_s, self._jobs_every_s, self._roots = every_s, jobs_every_s, tuple(roots)
        self._jobs_watch = JobsWatch() if jobs is None else jobs
        self._look_for_live = look_for_live
        self._jobs_of_late = JobsSeen()
        self._now_unix_s = now_unix_s
        self._host = socket.gethostname()
        self._jobs: tuple[JobHere, ...] = ()
        self._live: tuple[LiveJob, ...] = ()
        self._machine = HostSample()
        self._notes: dict[str, tuple[str, ...]] = dict.fromkeys(_PARTS, ())
        self._failures = dict.fromkeys(_PARTS, 0)
        # Whether every driver had answered when processes were looked at: who holds a GPU, they alone know.
        self._answered = False
        self._jobs_seen, self._live_seen, self._host_seen = (threading.Event() for _ in range(3))
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        for watch in self._watches:
            self._start(f"flatout-watch-{watch.vendor}", partial(watch.run, self._ended))
        self._start("flatout-watch-jobs", self._follow_jobs)
        self._start("flatout-watch-live", self._follow_live)
        self._start("flatout-watch-host", self._follow_host)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the threads. Safe to call twice."""
        self._ended.set()
        until = time.monotonic() + _CLOSING_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        self._threads = []

    def frame(self) -> Frame:
        """The newest look; never blocks. A device that has not been read for long is stale."""
        devices: list[Device] = []
        samples: list[DeviceSample] = []
        for watch in self._watches:
            pairs = watch.pairs()
            devices += (device for device, _ in pairs)
            samples += (sample for _, sample in pairs)
        return Frame(
            host=self._host,
            taken_at_unix_s=self._now_unix_s(),
            devices=tuple(devices),
            samples=tuple(samples),
            live_jobs=self._live,
            jobs=self._jobs,
            machine=self._machine,
            vendors=tuple(status for watch in self._watches for status in watch.vendors()),
            notes=tuple(note for notes in self._notes.values() for note in notes),
        )

    def failures(self) -> dict[str, int]:
        """How many looks ended in an error that nobody reckoned with, by what was looked at."""
        return {**{watch.vendor: watch.failures for watch in self._watches}, **self._failures}

    def history(self, uuid: str) -> DeviceHistory:
        """What the device of this uuid (or `device_key`) did; empty where nobody has seen it."""
        for watch in self._watches:
            if found := watch.histories.get(uuid):
                return found
        return DeviceHistory(samples_kept=1, minutes_kept=1)

    def wait_until_complete(self, timeout_s: float, *, samples: int = 1) -> bool:
        """Wait for so many samples of every vendor, for processes, jobs and the host; False if in vain."""
        until = time.monotonic() + timeout_s
        done = [watch.wait_for(samples, until - time.monotonic()) for watch in self._watches]
        seen = (self._jobs_seen, self._live_seen, self._host_seen)
        return all([*done, *(event.wait(max(0.0, until - time.monotonic())) for event in seen)])

    def _start(self, name: str, body: Callable[[], None]) -> None:
        thread = threading.Thread(target=body, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _follow_jobs(self) -> None:
        while not self._ended.is_set():
            began = time.thread_time()
            jobs: tuple[JobHere, ...] = ()
            self._answered = self._have_answered()
            with self._telling("processes"):
                found = self._jobs_watch.look(self._gpus, self._ended)
                jobs, self._notes["processes"] = found.jobs, found.notes
            self._jobs = jobs
            if self._answered:
                self._jobs_seen.set()
            pause_s = jobs_pause_s(self._jobs_every_s, time.thread_time() - began)
            self._pause(pause_s, None if self._answered else self._have_answered)

    def _gpus(self) -> list[tuple[Device, DeviceSample]]:
        self._answered = (
            self._have_answered()
        )  # before they are read: what comes meanwhile is looked at again
        return [pair for watch in self._watches for pair in watch.pairs() if pair[0].vendor != "cpu"]

    def _have_answered(self) -> bool:
        return all(watch.wait_for(1, 0.0) for watch in self._watches)

    def _follow_live(self) -> None:
        while not self._ended.is_set():
            knows_jobs = self._jobs_seen.is_set()
            live: tuple[LiveJob, ...] = ()
            with self._telling("live jobs"):
                jobs = self._jobs_of_late.with_those_that_ended(self._jobs)
                live = tuple(self._look_for_live(jobs, self._roots))
                self._notes["live jobs"] = ()
            self._live = live
            if knows_jobs:
                self._live_seen.set()
            self._pause(max(self._every_s, LIVE_EVERY_S), None if knows_jobs else self._jobs_seen.is_set)

    def _follow_host(self) -> None:
        with self._telling("host"):
            psutil.cpu_percent()  # its first answer in a thread means nothing
        while not self._ended.wait(max(self._every_s, HOST_EVERY_S)):
            machine = HostSample()
            with self._telling("host"):
                memory = psutil.virtual_memory()
                machine = HostSample(
                    cpu_share=psutil.cpu_percent() / 100,
                    memory_used_bytes=memory.total - memory.available,
                    memory_total_bytes=memory.total,
                )
                self._notes["host"] = ()
            self._machine = machine
            self._host_seen.set()

    @contextlib.contextmanager
    def _telling(self, part: str) -> Iterator[None]:
        """An error that nobody reckoned with ends one look, not the thread: it is noted and counted."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, the next look may succeed
            self._failures[part] += 1
            self._notes[part] = (f"{part} cannot be seen: {error_line(error)}",)

    def _pause(self, seconds: float, awaited: Callable[[], bool] | None) -> None:
        """Between two looks; where something was missing, no longer than until it is there."""
        if awaited is None:
            self._ended.wait(seconds)
            return
        until = time.monotonic() + seconds
        while not awaited() and time.monotonic() < until and not self._ended.wait(_SOON_S):
            pass


def jobs_pause_s(every_s: float, cost_s: float) -> float:
    """How long to wait after a look at processes that took so much processor time."""
    return max(every_s, min(_JOBS_PAUSE_MOST_S, cost_s / _JOBS_SHARE_MOST))
