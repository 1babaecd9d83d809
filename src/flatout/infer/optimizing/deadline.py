"""Work that must not take longer than it may: what hangs is left behind, and the program goes on."""

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

# How long a thread has to come back after it was told to stop.
_GRACE_S = 5.0
# A process at rest uses less than this share of a core over so many seconds.
_AT_REST, _LOOK_S = 0.1, 0.2


class TooLong(Exception):
    """It was not done in time. `is_gone`: whether it has ended, or still runs somewhere."""

    def __init__(self, seconds: float, *, is_gone: bool) -> None:
        self.is_gone = is_gone
        super().__init__(f"no answer within {seconds:.0f} s" + ("" if is_gone else "; it was left behind"))


class _Stop(BaseException):
    """Raised in a thread whose time is over."""


def within(seconds: float, work: Callable[[], Any]) -> Any:
    """What `work` returns or raises, in a thread of its own; TooLong where that takes longer than `seconds`.

    A thread that runs Python is told to stop. One that is stuck in a driver or a compiler cannot be: it is
    left behind.
    """
    done: list[Any] = []
    failed: list[BaseException] = []
    # Both belong to threads: a new one would begin with others.
    cuda: Any = torch.cuda
    threads, device = torch.get_num_threads(), cuda.current_device() if cuda.is_initialized() else None

    def run() -> None:
        try:
            torch.set_num_threads(threads)
            if device is not None:
                torch.cuda.set_device(device)
            done.append(work())
        except _Stop:
            pass
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever asked
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True, name="flatout-trial")
    thread.start()
    try:
        thread.join(seconds)
    except BaseException:  # Ctrl-C: the trial must not go on behind the prompt
        _tell_to_stop(thread)
        raise
    if thread.is_alive():
        _tell_to_stop(thread)
        thread.join(_GRACE_S)
        raise TooLong(seconds, is_gone=not thread.is_alive())
    if failed:
        raise failed[0]
    if not done:
        raise TooLong(seconds, is_gone=True)
    return done[0]


def quiet_within(seconds: float) -> bool:
    """Whether the process comes to rest: work that was given up may have begun threads of its own."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        used = time.process_time()
        time.sleep(_LOOK_S)
        if time.process_time() - used < _AT_REST * _LOOK_S:
            return True
    return False


def _tell_to_stop(thread: threading.Thread) -> None:
    if thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_Stop))
