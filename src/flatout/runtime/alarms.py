"""Alarms that a watched job has given, while it runs and afterwards."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from flatout.records.running import Alarm
from flatout.records.session import ALARMS_FILE, RANKS_FOLDER
from flatout.runtime.aside import start_aside

_LOOK_S = 1.0


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
    known: set[Alarm] = set()

    def look() -> None:
        for alarm in alarms_in(folder):
            if alarm not in known:  # by what it says: another rank's may come later, of an earlier update
                known.add(alarm)
                tell(alarm)

    def watch() -> None:
        while not ended.wait(_LOOK_S):
            look()

    thread = start_aside(watch, "flatout-alarms")
    try:
        yield
    finally:
        ended.set()
        thread.join()
        look()
