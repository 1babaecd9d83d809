"""A process that outlives the command which changes limits, and puts them back when that one is gone.

It is in a session of its own, so that neither Ctrl-C nor a closed terminal reaches it. Its standard input
is a pipe from the command: a byte now and then says that all is well, another that the command has put
everything back itself. An end without that one, a long silence, or SIGTERM: limits are put back from here.
"""

import contextlib
import os
import selectors
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from flatout.hardware.power_limits import PowerControls, default_controls
from flatout.monitor.power.claims import add_news, read_claims
from flatout.monitor.power.restoring import PATIENCE_S, restore_all
from flatout.records.errors import LockHeld
from flatout.records.lock import folder_lock

WATCHDOG_LOCK = "watchdog.lock"
READY = b"ready\n"
BEAT = b"."
DONE = b"D"
# A command that says nothing for so long is stopped or stuck.
SILENCE_S = 60.0


class _Asked(BaseException):
    """SIGTERM: the machine or its service manager wants everything to end."""


def main(arguments: list[str]) -> int:
    """Watch over one folder of notes until the command is done or gone."""
    folder = Path(arguments[0])
    silence_s = float(arguments[1]) if len(arguments) > 1 else SILENCE_S
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _ask)
    # Whoever starts us may have put signals off, which children inherit.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    try:
        with folder_lock(folder, name=WATCHDOG_LOCK):
            with contextlib.suppress(_Asked):
                with contextlib.suppress(OSError):
                    os.write(1, READY)
                if _wait(silence_s):
                    return 0
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            put_back(folder, default_controls(), "the command that had changed it is gone")
    except LockHeld:
        return 1
    return 0


def put_back(folder: Path, controls: PowerControls, why: str) -> None:
    """Restore everything; what came of it waits for the next command of Flatout's to tell."""
    if not read_claims(folder)[0]:
        return
    outcomes, problems = restore_all(folder, controls, patience_s=PATIENCE_S)
    for found in outcomes:
        add_news(folder, f"{found.words()} ({why})")
    for problem in problems:
        add_news(folder, problem)
    controls.close()


def _wait(silence_s: float) -> bool:
    """Whether the command said that it is done; False where it ended or fell silent."""
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        heard_at = time.monotonic()
        while True:
            if not selector.select(timeout=max(heard_at + silence_s - time.monotonic(), 0.0)):
                return False
            said = os.read(0, 4096)
            if not said or DONE in said:
                return DONE in said
            heard_at = time.monotonic()


def _ask(_number: int, _frame: FrameType | None) -> None:
    raise _Asked


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
