"""Writes finished steps to the run folder from a thread, so that no step waits for a disk."""

import contextlib
import json
import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flatout.records.session import SESSION_FILE, STEPS_FILE

_FLUSH_S = 0.5


class StepWriter:
    """A file of JSON lines, one a step, and beside it what there is to know of the process."""

    def __init__(self, folder: Path, describe: Callable[[], dict[str, Any]]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._describe = describe
        self._steps: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._write_lock = threading.Lock()
        self._broken = False
        self._thread = threading.Thread(target=self._serve, name="flatout-writer", daemon=True)
        self._thread.start()

    def put(self, step: dict[str, Any]) -> None:
        """Hand over a finished step; costs a queue operation."""
        self._steps.put(step)

    def close(self) -> None:
        """Write everything that is left, here and now."""
        self._closing.set()
        self._flush()

    def _serve(self) -> None:
        while not self._closing.wait(_FLUSH_S):
            self._flush()

    def _flush(self) -> None:
        with self._write_lock:
            lines = []
            with contextlib.suppress(queue.Empty):
                while True:
                    lines.append(json.dumps(self._steps.get_nowait()))
            if self._broken:
                return
            try:
                if lines:
                    with (self._folder / STEPS_FILE).open("a") as file:
                        file.write("\n".join(lines) + "\n")
                fresh = self._folder / f".{SESSION_FILE}.tmp"
                fresh.write_text(json.dumps(self._describe(), indent=1, default=str))
                os.replace(fresh, self._folder / SESSION_FILE)  # noqa: PTH105
            except OSError:
                self._broken = True  # a full disk must not trouble the job; the parent sees a short file
