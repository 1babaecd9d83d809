"""Jobs that somebody ends in a view: each in a thread that outlives it, so that none stops half-way."""

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator

from flatout.records.watched import JobRow
from flatout.runtime.aside import start_aside

StopJob = Callable[[JobRow, Callable[[str], None]], str]
# How often somebody who waits looks whether all are over.
_LOOK_S = 0.2


class Endings:
    """What is said of them waits here for whoever asks; any thread calls `wake` when there is news."""

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._said: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._running: list[tuple[JobRow, threading.Thread]] = []

    def begin(self, row: JobRow, stop: StopJob) -> None:
        """Have it ended."""

        def work() -> None:
            try:
                self._say(stop(row, self._say))
            except Exception as error:  # noqa: BLE001 - whoever asked for it hears what became of it
                self._say(f"{row.name} could not be ended: {type(error).__name__}: {error}")

        self._running.append((row, start_aside(work, "flatout-ending")))

    def news(self) -> list[str]:
        """What was said since the last time."""
        return list(self._heard(0.0))

    def under_way(self) -> list[JobRow]:
        """Those that are not over yet."""
        return [row for row, thread in self._running if thread.is_alive()]

    def go_on(self, tell: Callable[[str], None]) -> None:
        """The view is left: what is said goes to `tell`, until all of them are over."""
        for row in self.under_way():
            tell(f"{row.name} is still being ended; whoever does not wait: flatout stop {row.pid}")
        last = ""
        while True:
            # Looked at first: who is over by then has said all of it.
            is_over = not self.under_way()
            for words in self._heard(0.0 if is_over else _LOOK_S):
                if words != last:  # stages are told again and again
                    tell(words)
                last = words
            if is_over:
                return

    def _heard(self, patience_s: float) -> Iterator[str]:
        with contextlib.suppress(queue.Empty):
            while True:
                yield self._said.get(timeout=patience_s) if patience_s else self._said.get_nowait()

    def _say(self, words: str) -> None:
        self._said.put(words)
        # A view that is gone cannot be woken; whoever comes after it asks.
        with contextlib.suppress(RuntimeError):
            self._wake()
