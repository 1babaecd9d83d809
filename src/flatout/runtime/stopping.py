"""Being asked to stop: a signal becomes an answer that a training loop can ask for between two steps.

The first call takes the signals over, and each later one those for which the script has set a handler since.
A handler of the script's is called all the same, and a signal that it ignores stays ignored. Ranks agree:
whoever is told first names a step that nobody has passed, and all stop there.
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
# Beside the order: this training was asked to stop, whatever it then made of it.
ASKED_FILE = "asked"
# A script that handles a signal itself is left to do so for so many steps, and for so long.
_OWN_STEPS = 3
_OWN_S = 5.0
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
        # `flatout run` sees of torchrun only that a rank has failed.
        _tell_the_outside(ASKED_TO_STOP_FILE, str(code))


class _Taken:
    """A signal in our hands, and what was to be done with it before.

    One for each time that it is taken: a script that keeps what it found, calls it, or puts it back, comes to
    what there was at that time.
    """

    def __init__(self, stop: "Stop", before: Any, *, is_late: bool) -> None:
        self.stop = stop
        self.before = before
        # The script set its handler after we were there: it answers the signal by itself.
        self.is_late = is_late

    def __call__(self, number: int, frame: Any) -> None:
        self.stop.on_signal(self, number, frame)


class Stop:
    """What this process was asked for, and by which signal."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.asked_at: float | None = None
        self._pid = os.getpid()
        self._listens = False
        # Whether the script's own handler has the signal, and how many steps it has been left to act.
        self._is_left_to_the_script = False
        self._own_steps = 0
        self._worker_watch: Any = None
        self._calls = 0
        self._stop_at: int | None = None
        # While there is nothing to save, a signal does what it would do without us.
        self.at_once = False

    # Signals

    def listen(self) -> bool:
        """Take the signals over, and those back that the script has taken since.

        Whether it began to listen now. Only the main thread may.
        """
        if threading.current_thread() is not threading.main_thread():
            return False
        begins, self._listens, self._pid = not self._listens, True, os.getpid()
        for number in _numbers():
            before = signal.getsignal(number)
            if before is None or before is signal.SIG_IGN or self._is_ours(before):  # by C code, or wanted so
                continue
            is_late = not begins and before not in _DEFAULTS
            signal.signal(number, _Taken(self, before, is_late=is_late))
        return begins

    def leave(self) -> None:
        """Put back what was found, where it is still ours."""
        for number in _numbers():
            taken = signal.getsignal(number)
            if isinstance(taken, _Taken) and taken.stop is self:
                with contextlib.suppress(ValueError):  # not in the main thread
                    signal.signal(number, self._found_by(taken))
        if self._worker_watch is not None and signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL:
            with contextlib.suppress(ValueError):
                signal.signal(signal.SIGCHLD, self._worker_watch)
        self._listens, self._worker_watch = False, None
        self.signal = self.asked_at = self._stop_at = None
        self._is_left_to_the_script, self._own_steps = False, 0

    def _is_ours(self, handler: Any) -> bool:
        return isinstance(handler, _Taken) and handler.stop is self

    def _found_by(self, taken: _Taken) -> Any:
        """What is not ours, under however many that are."""
        before = taken.before
        return self._found_by(before) if self._is_ours(before) else before

    def on_signal(self, taken: _Taken, number: int, frame: Any) -> None:
        """It came, or a handler of the script's passes it on."""
        is_passed_on = signal.getsignal(number) is not taken
        if not self._listens or (self.at_once and taken.before in _DEFAULTS):
            self._do_as_without_us(taken, number, frame, is_passed_on=is_passed_on)
            return
        # Another one counts anew where the script had the first: it may have been no wish to stop.
        again = self.signal is not None and not (self._is_left_to_the_script and number != self.signal)
        if not again:
            self._note(number)
        # A script that passes it on wants what was there before it: us.
        self._is_left_to_the_script = taken.is_late
        if callable(taken.before) and taken.before is not signal.default_int_handler:
            taken.before(number, frame)
        elif number == signal.SIGINT and again and time.monotonic() - (self.asked_at or 0.0) > _TWICE_S:
            raise KeyboardInterrupt  # whoever presses Ctrl-C twice does not want to wait

    def _note(self, number: int) -> None:
        self.signal, self.asked_at = number, time.monotonic()
        self._stop_watching_workers()
        if os.getpid() == self._pid:  # not a worker, which has inherited all of this
            _tell_the_outside(ASKED_FILE, signal.Signals(number).name)

    def _do_as_without_us(self, taken: _Taken, number: int, frame: Any, *, is_passed_on: bool) -> None:
        self.leave()
        if callable(taken.before):
            taken.before(number, frame)
        elif not is_passed_on:  # nobody passes a signal on to what cannot be called
            signal.raise_signal(number)

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
        is_asked = self.signal is not None and not self._is_the_scripts_turn()
        if store is None or store == "":
            return is_asked
        if is_asked and self._stop_at is None:
            wanted = str(self._calls + _AHEAD)
            self._stop_at = int(store.compare_set(_KEY, "", wanted))
        elif self._stop_at is None and store.check([_KEY]):
            self._stop_at = int(store.get(_KEY))
        return self.is_agreed

    @property
    def is_agreed(self) -> bool:
        """Whether all ranks were told to stop by now; unlike asking at a step, it counts none."""
        return self._stop_at is not None and self._calls >= self._stop_at

    def _is_the_scripts_turn(self) -> bool:
        """Whether a script that handles the signal itself may still come to do so: it saves, it leaves.

        SIGUSR1 may mean anything to it, and is its own for good.
        """
        if not self._is_left_to_the_script:
            return False
        self._own_steps += 1
        is_early = self._own_steps <= _OWN_STEPS or time.monotonic() - (self.asked_at or 0.0) <= _OWN_S
        return is_early or self.signal == getattr(signal, "SIGUSR1", None)

    @property
    def exit_code(self) -> int:
        """By which the outside knows why it ended: that of the signal."""
        return 128 + (self.signal or signal.SIGTERM)


_DEFAULTS = (signal.SIG_DFL, signal.default_int_handler)


def _numbers() -> list[int]:
    return [number for name in _SIGNALS if (number := getattr(signal, name, None)) is not None]


def _tell_the_outside(name: str, text: str) -> None:
    """In a file beside the order, where there is one; not through `open`, which may be watched, or void."""
    order = os.environ.get(SESSION_VARIABLE)
    if not order:
        return
    with contextlib.suppress(OSError):
        file = os.open(Path(order).with_name(name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            os.write(file, text.encode())
        finally:
            os.close(file)


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
    handler: Any = signal.getsignal(signal.SIGTERM)
    while isinstance(handler, _Taken):
        handler = handler.before
    handlers = getattr(handler, "signal_handlers", None)
    if isinstance(handlers, list) and store_of_ranks() is not None:
        handlers[:] = [one for one in handlers if getattr(one, "__name__", "") != "_sigterm_notifier_fn"]
