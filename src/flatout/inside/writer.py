"""Writes the event log to the run folder from a thread, so that no step waits for a disk."""

import contextlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flatout.inside.log import EventLog
from flatout.records.session import EVENTS_FILE, ON_ITS_WAY, SESSION_FILE

_FLUSH_S = 0.25
_DESCRIBE_EVERY = 8


def _on_its_way(_value: object) -> str:
    """A number that a device has not delivered yet: it comes with the step's device times."""
    return ON_ITS_WAY


encode = json.JSONEncoder(default=_on_its_way, separators=(",", ":"), check_circular=False).encode


class EventWriter:
    """A file with an array of events a line, and beside it what there is to know of the process."""

    def __init__(
        self,
        folder: Path,
        log: EventLog,
        describe: Callable[[], dict[str, Any]],
        on_tick: Callable[[], None],
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._log = log
        self._describe = describe
        self._on_tick = on_tick
        self._closing = threading.Event()
        self._write_lock = threading.Lock()
        self._broken = False
        self._ticks = 0
        # Whether there was anything to write the last time.
        self.had_news = False
        self._thread: threading.Thread | None = None
        self.resume()

    def resume(self) -> None:
        """Start the thread."""
        self._closing.clear()
        self._thread = threading.Thread(target=self._serve, name="flatout-writer", daemon=True)
        self._thread.start()

    def pause(self) -> None:
        """End the thread, and wait until it is gone."""
        self._closing.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)
            self._thread = None

    def write_now(self) -> None:
        """What there is, for whoever reads it in this process."""
        self._flush(describe=False)

    def close(self) -> None:
        """Write everything that is left, here and now. Whatever goes wrong, the script's end is its own."""
        self._closing.set()
        with contextlib.suppress(Exception):
            self._flush(describe=True)

    def _serve(self) -> None:
        while not self._closing.wait(_FLUSH_S):
            with contextlib.suppress(Exception):  # what changes while it is described is described next time
                self._flush(describe=self._ticks % _DESCRIBE_EVERY == 0)
            self._ticks += 1
            with contextlib.suppress(Exception):
                self._on_tick()

    def _flush(self, *, describe: bool) -> None:
        with self._write_lock:
            events = self._log.drain()
            self.had_news = bool(events)
            if self._broken:
                return
            try:
                if events:
                    with (self.folder / EVENTS_FILE).open("a") as file:
                        file.write(encode(events) + "\n")
                if describe:
                    fresh = self.folder / f".{SESSION_FILE}.tmp"
                    fresh.write_text(json.dumps(self._describe(), indent=1, default=str))
                    os.replace(fresh, self.folder / SESSION_FILE)  # noqa: PTH105
            except OSError:
                self._broken = True  # a full disk must not trouble the job; the parent sees a short file
