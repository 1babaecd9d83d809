"""Processes as records, for what cannot be produced on demand: containers' first processes, other users."""

from typing import Any

from flatout.runtime.process_table import Seen, Table

PYTHON = "/usr/bin/python3"
INIT = {
    "name": "systemd",
    "words": ("/sbin/init",),
    "is_python": False,
    "session": 1,
    "group": 1,
    "user": "root",
}


def seen(pid: int, parent: int = 1, *words: str, **changes: Any) -> Seen:
    """A Python process of ada's that was started as a program, with these words after the interpreter."""
    facts: dict[str, Any] = {
        "pid": pid,
        "start": float(pid),
        "started_unix_s": 1_760_000_000.0 + pid,
        "parent": parent,
        "group": pid,
        "session": 50,
        "name": "python3",
        "words": (PYTHON, *words),
        "user": "ada",
        "status": "sleeping",
        "cpu_s": 1.0,
        "memory_bytes": 1 << 28,
        "is_python": True,
        "forked": False,
        "of_the_kernel": False,
        "variables": {},
        "holds_torch": True,
    }
    return Seen(**{**facts, **changes})


def forked(pid: int, of: Seen, parent: int = 0, **changes: Any) -> Seen:
    """A copy of a process, as multiprocessing makes it; another `parent` has inherited it."""
    same = {"group": of.group, "session": of.session, "variables": of.variables}
    return seen(pid, parent or of.pid, *of.words[1:], **{**same, "forked": True, **changes})


def loader_worker(pid: int, of: Seen, parent: int = 0, **changes: Any) -> Seen:
    """A worker of a DataLoader."""
    return forked(pid, of, parent, name="pt_data_worker", **changes)


def machine(*processes: Seen) -> Table:
    """These, below an init."""
    return Table([seen(1, 0, holds_torch=False, variables=None, **INIT), *processes])
