"""Ends a job from Flatout's side, when its keeper was killed and could not."""

import contextlib
import time

import psutil

from flatout.records.session import KEEPER_VARIABLE
from flatout.runtime.job import keeper_value

_WITHIN_S = 10.0
_PAUSE_S = 0.02


def end_job_of(keeper_pid: int, mark: str) -> list[int]:
    """Kill every process of this user that a job with this keeper and mark started; returns their pids.

    They are known by a variable in their environment. Looks again until none is left, for ten seconds; and
    once more, for one that is just becoming another program shows no variables for an instant.
    """
    value = keeper_value(keeper_pid, mark)
    ended: dict[int, None] = {}
    deadline = time.monotonic() + _WITHIN_S
    quiet_looks = 0
    while quiet_looks < 2 and time.monotonic() < deadline:
        found = _with_value(value)
        quiet_looks = 0 if found else quiet_looks + 1
        for process in found:
            ended[process.pid] = None
            # psutil compares start times first: a pid that was given to another process is spared.
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(_PAUSE_S)
    return list(ended)


def _with_value(value: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        # Other users' processes refuse to tell; ended ones cannot.
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(KEEPER_VARIABLE) == value:
                found.append(process)
    return found
