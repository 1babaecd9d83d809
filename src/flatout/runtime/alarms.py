"""Alarms that a watched job has given, while it runs and afterwards."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from flatout.records.running import Alarm
from flatout.records.session import ALARMS_FILE, RANKS_FOLDER

_LOOK_S = 1.0
_FOR_THE_MAIN_THREAD = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


def alarms_in(folder: Path) -> list[Alarm]:
    """Every alarm so far, in the order of updates; a line that is still being written is left for later."""
    found = []
    for path in sorted((folder / RANKS_FOLDER).glob(f"*/{ALARMS_FILE}")):
        with contextlib.suppress(OSError):
            for line in path.read_bytes().splitlines():
                with contextlib.suppress(msgspec.MsgspecError):
                    found.append(msgspec.json.decode(line, type=Alarm))
    return sorted(found, key=lambda alarm: (alarm.update, alarm.rank))


@contextlib.contextmanager
def told(folder: Path, tell: Callable[[Alarm], None]) -> Iterator[None]:
    """Tell of each alarm once, about when it is given."""
    ended = threading.Event()
    known = 0

    def look() -> None:
        nonlocal known
        alarms = alarms_in(folder)
        for alarm in alarms[known:]:
            tell(alarm)
        known = len(alarms)

    def watch() -> None:
        while not ended.wait(_LOOK_S):
            look()

    thread = threading.Thread(target=watch, name="flatout-alarms", daemon=True)
    # One that this thread took would not wake the main one, which waits for the job and answers signals.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_THE_MAIN_THREAD)
    thread.start()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        yield
    finally:
        ended.set()
        thread.join()
        look()
