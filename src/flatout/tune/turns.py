"""Runs that start side by side and train by turns: a device has room for only so many of them."""

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path

from flatout.hardware.host import available_memory_bytes, cores_allowed, read_host
from flatout.records.profile import Profile
from flatout.records.session import TURN_FILE, WAITING_FILE
from flatout.runtime.progress import Progress

# What a process takes on a GPU beside its tensors.
_CONTEXT_BYTES = 600 << 20
# Of the device's memory, and of what a run took there: it may take a little more the next time.
_OF_THE_DEVICE, _OF_A_RUN = 0.9, 1.15
_OF_THE_HOST = 0.7
# A start is mostly one thread that imports and initializes.
_CORES_FOR_A_START = 2


@dataclasses.dataclass(frozen=True)
class Room:
    """How many runs of a job may be under way side by side, and how many of these may train."""

    started: int
    training: int


def room_for(baseline: Profile, threads: int, runs: int) -> Room:
    """Room for so many runs of the job, each with so many threads."""
    memory, cores = baseline.memory, cores_allowed(read_host(places=()))
    if memory.host_peak_bytes:
        runs = max(1, min(runs, int(_OF_THE_HOST * available_memory_bytes() / memory.host_peak_bytes)))
    if len(baseline.ranks) > 1:  # launchers listen on a port, which only one of them can have
        return Room(1, 1)
    if baseline.device is None or not baseline.device.startswith("cuda"):
        # Threads that share a core wait for each other at every operation: thirty times slower was seen.
        count = max(1, min(runs, cores // max(1, threads)))
        return Room(count, count)
    if not memory.reserved_peak_bytes or not memory.device_total_bytes:
        return Room(1, 1)
    device = _OF_THE_DEVICE * memory.device_total_bytes
    training = _OF_A_RUN * memory.reserved_peak_bytes + _CONTEXT_BYTES
    most = max(1, min(runs, int(device / training)))
    # Who waits for a turn has a model on the device already.
    waiting = _OF_A_RUN * (memory.parameter_bytes or memory.reserved_peak_bytes) + _CONTEXT_BYTES
    started = most + max(0, int((device - most * training) / waiting))
    started = min(started, runs, cores // _CORES_FOR_A_START)
    return Room(max(most, started), most)


class NotNeeded(Exception):
    """What ends a run whose result nobody waits for any more, wherever it is."""


class Turns:
    """Whoever asks first is first; a turn lasts to the end of the run."""

    def __init__(self, count: int) -> None:
        self._free = threading.Semaphore(count)
        self._over = threading.Event()

    def end_all(self) -> None:
        """No run needs to go on."""
        self._over.set()

    @contextlib.contextmanager
    def taker(self) -> Iterator["Taker"]:
        """For one run."""
        taker = Taker(self._free, self._over)
        try:
            yield taker
        finally:
            taker.end()


class Taker:
    """Follows a trial, and lets it train when it is its turn."""

    def __init__(self, free: threading.Semaphore, over: threading.Event) -> None:
        self._free = free
        self._over = over
        self._has_turn = False
        # As the plan says.
        self.silence_s: float | None = None

    def look(self, folder: Path, progress: Progress) -> bool:
        """Give a run that waits the turn, if one is free; the run itself knows when it has done enough."""
        if (folder / WAITING_FILE).exists() and not (folder / TURN_FILE).exists():
            self._has_turn = self._has_turn or self._free.acquire(blocking=False)
            progress.has_waited()
            if self._has_turn:
                (folder / TURN_FILE).touch()
        if self._over.is_set():
            raise NotNeeded
        return False

    def end(self) -> None:
        """The run is over: the next may."""
        if self._has_turn:
            self._has_turn = False
            self._free.release()
