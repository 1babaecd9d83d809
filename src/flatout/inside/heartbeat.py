"""Tells whoever watches from outside that the job is alive: a few bytes of memory that a file shows.

And lets the watcher ask where it stands: a signal makes Python's fault handler, which needs no lock and no
interpreter, write all stacks down.
"""

import contextlib
import faulthandler
import mmap
import signal
import time
from pathlib import Path
from typing import Any

from flatout.records.hang import HEARTBEAT, HEARTBEAT_FILE, STACKS_FILE, STACKS_SIGNAL_ABOVE_MIN


class Heart:
    """Beats at each update; a sign is anything else that was seen."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._updates, self._updated_s = 0, time.monotonic()
        with (folder / HEARTBEAT_FILE).open("w+b") as file:
            file.write(HEARTBEAT.pack(0, self._updated_s, self._updated_s))
            file.flush()
            self._memory = mmap.mmap(file.fileno(), HEARTBEAT.size)
        self._stacks: Any = None
        with contextlib.suppress(Exception):  # without it, there are other ways to the stacks
            self._stacks = (folder / STACKS_FILE).open("w")
            number = signal.SIGRTMIN + STACKS_SIGNAL_ABOVE_MIN
            faulthandler.register(number, file=self._stacks, all_threads=True, chain=False)

    def stop(self) -> None:
        """Another has taken its place; a thread may be giving a sign just now, and may."""
        if self._stacks is not None:
            self._stacks.close()

    def beat(self, updates: int) -> None:
        """An update has ended."""
        now = time.monotonic()
        self._updates, self._updated_s = updates, now
        HEARTBEAT.pack_into(self._memory, 0, updates, now, now)

    def sign(self) -> None:
        """Something has happened, and be it an evaluation."""
        HEARTBEAT.pack_into(self._memory, 0, self._updates, self._updated_s, time.monotonic())
