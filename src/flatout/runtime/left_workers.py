"""Ends the workers that a job under `flatout run` left behind: its loader's, its compiler's, nobody else."""

import contextlib
import signal
import time

from flatout.records.session import SESSION_VARIABLE
from flatout.runtime.pinned import Pin
from flatout.runtime.process_table import Seen, Table, read_table
from flatout.runtime.roles import WORKERS, role_of, why_orphan

# Workers that are not stuck notice by themselves that they are alone, within a second or so.
_BY_THEMSELVES_S = 3.0
_LOOK_S = 0.2
_ALL_WITHIN_S = 10.0


def end_workers_left_by(order: str) -> list[int]:
    """Kill orphaned workers that carry this FLATOUT_SESSION, once they have had time; returns their pids.

    What the script started as programs, such as a logger's service, is the script's own affair.
    """
    deadline = time.monotonic() + _BY_THEMSELVES_S
    while left := _left(read_table(), order):
        if time.monotonic() >= deadline:
            return _gone([one.pid for one in left if _kill(one)])
        time.sleep(_LOOK_S)
    return []


def _gone(pids: list[int]) -> list[int]:
    """When they are: a process that was killed lives on for the moment that its memory takes."""
    deadline = time.monotonic() + _BY_THEMSELVES_S
    while time.monotonic() < deadline:
        there = read_table().by_pid
        if not any(pid in there and not there[pid].zombie for pid in pids):
            break
        time.sleep(_LOOK_S)
    return pids


def end_all_of(order: str) -> list[int]:
    """Kill every process that carries this FLATOUT_SESSION, and look again until none is left; their pids."""
    ended: list[int] = []
    deadline = time.monotonic() + _ALL_WITHIN_S
    while time.monotonic() < deadline:
        table = read_table()
        # Whoever writes a checkpoint carries none, and ends when that is written.
        left = [one for one in table.by_pid.values() if one.variable(SESSION_VARIABLE) == order]
        fresh = [one.pid for one in left if one.pid not in ended and _kill(one)]
        ended += fresh
        if not fresh:
            break
        time.sleep(_LOOK_S)
    return ended


def _left(table: Table, order: str) -> list[Seen]:
    ours = [one for one in table.by_pid.values() if one.variable(SESSION_VARIABLE) == order]
    roles = {one.pid: role_of(one, table) for one in ours}
    return [one for one in ours if roles[one.pid] in WORKERS and why_orphan(one, roles[one.pid], table)]


def _kill(process: Seen) -> bool:
    pin = Pin(process)
    with contextlib.closing(pin), contextlib.suppress(PermissionError):
        return pin.send(signal.SIGKILL)
    return False
