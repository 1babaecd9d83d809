"""Being asked to stop: a signal becomes an answer that a training loop can ask for between two steps.

The first call takes the signals over; a handler that the script had set is called all the same, and a signal
that it ignores stays ignored. Ranks agree: whoever is told first names a step that nobody has passed, and all
stop there.
"""

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from flatout.records.session import ASKED_TO_STOP_FILE, SESSION_VARIABLE
from flatout.runtime.meeting import store_of_ranks, words_of_this_life

# One that comes sooner is the same, told to the whole group and passed on besides.
_TWICE_S = 0.2
_SIGNALS = ("SIGTERM", "SIGINT", "SIGUSR1")
_KEY = "stop-at"
# Ranks are at most one step apart: each waits for the others' gradients.
_AHEAD = 2
# Ranks that ask at every step have met after three; who asks for longer in vain is the only one that asks.
_MEET_WITHIN = 20
# What torch sets for SIGCHLD: it raises, wherever the script stands, when a DataLoader's worker was killed.
_WORKER_WATCH = "torch.utils.data._utils.signal_handling"


class Stopped(SystemExit):
    """The end of a training that was asked to stop, after it was saved; its code is that of the signal."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        order = os.environ.get(SESSION_VARIABLE)
        if order:  # `flatout run` sees of torchrun only that a rank has failed
            with contextlib.suppress(OSError):
                Path(order).with_name(ASKED_TO_STOP_FILE).write_text(str(code))


class Stop:
    """What this process was asked for, and by which signal."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.asked_at: float | None = None
        self._found: dict[int, Any] = {}
        self._worker_watch: Any = None
        self._calls = 0
        self._stop_at: int | None = None
        # While there is nothing to save, a signal does what it would do without us.
        self.at_once = False

    # Signals

    def listen(self) -> bool:
        """Take the signals over, unless they are; whether it did. Only the main thread may."""
        if self._found or threading.current_thread() is not threading.main_thread():
            return False
        for name in _SIGNALS:
            number = getattr(signal, name, None)
            if number is None:
                continue
            before = signal.getsignal(number)
            if before is None or before is signal.SIG_IGN:  # set by C code, or wanted so
                continue
            self._found[number] = before
            signal.signal(number, self._on_signal)
        return True

    def leave(self) -> None:
        """Put back what was found, where it is still ours."""
        for number, before in self._found.items():
            if signal.getsignal(number) == self._on_signal:
                with contextlib.suppress(ValueError):  # not in the main thread
                    signal.signal(number, before)
        if self._worker_watch is not None and signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL:
            with contextlib.suppress(ValueError):
                signal.signal(signal.SIGCHLD, self._worker_watch)
        self._found, self._worker_watch = {}, None
        self.signal = self.asked_at = self._stop_at = None

    def _on_signal(self, number: int, frame: Any) -> None:
        if self.at_once and self._found.get(number) in (signal.SIG_DFL, signal.default_int_handler):
            self.leave()
            signal.raise_signal(number)
            return
        again = self.signal is not None
        if not again:
            self.signal, self.asked_at = number, time.monotonic()
            self._stop_watching_workers()
        before = self._found.get(number)
        if callable(before) and before is not signal.default_int_handler:
            before(number, frame)
        elif number == signal.SIGINT and again and time.monotonic() - (self.asked_at or 0.0) > _TWICE_S:
            raise KeyboardInterrupt  # whoever presses Ctrl-C twice does not want to wait

    def _stop_watching_workers(self) -> None:
        """Slurm tells every process of a job: loaders' workers that die of it must not fail the last step."""
        watch = signal.getsignal(signal.SIGCHLD)
        if getattr(watch, "__module__", "") == _WORKER_WATCH:
            self._worker_watch = watch
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    # Asking

    def requested(self, store: Any = None) -> bool:
        """Whether to stop now; with the words of all ranks, they get the same answer at the same call.

        As long as these have not met ("" for their words), nobody stops.
        """
        self.listen()
        self._calls += 1
        if store == "" and self._calls <= _MEET_WITHIN:
            return False
        if store is None or store == "":
            return self.signal is not None
        if self.signal is not None and self._stop_at is None:
            wanted = str(self._calls + _AHEAD)
            self._stop_at = int(store.compare_set(_KEY, "", wanted))
        elif self._stop_at is None and store.check([_KEY]):
            self._stop_at = int(store.get(_KEY))
        return self._stop_at is not None and self._calls >= self._stop_at

    @property
    def exit_code(self) -> int:
        """By which the outside knows why it ended: that of the signal."""
        return 128 + (self.signal or signal.SIGTERM)


_stop = Stop()


def current() -> Stop:
    """The one of this process."""
    return _stop


def stop_requested() -> bool:
    """Whether this training was asked to stop: by SIGTERM, SIGINT or SIGUSR1, on any rank.

        while step < steps:
            ...
            if flatout.stop_requested():
                save()
                break

    To be asked once a step, on every rank; all get the same answer at the same step. A second Ctrl-C
    interrupts at once. `flatout.Checkpointer` asks by itself.
    """
    return _stop.requested(words_of_this_life(wait=False))


def call_no_ranks_from_signals() -> None:
    """Take out of the handler of SIGTERM what calls other ranks in the middle of whatever they do.

    Lightning's own does: ranks then wait for each other for ever. Here, all are told between two steps.
    """
    handlers = getattr(signal.getsignal(signal.SIGTERM), "signal_handlers", None)
    if isinstance(handlers, list) and store_of_ranks() is not None:
        handlers[:] = [one for one in handlers if getattr(one, "__name__", "") != "_sigterm_notifier_fn"]
