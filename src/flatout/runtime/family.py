"""The processes of a job: its main one and whatever that started, as children of a subreaper.

Orphans become the subreaper's children, so a process of the job cannot leave this family, not even as a
daemon in a session of its own; and "no children left" means that nobody is left.
"""

import contextlib
import os
import signal
import sys
from pathlib import Path


class Family:
    """The descendants of this process, of which `main` is the first."""

    def __init__(self, main: int) -> None:
        self.main = main
        # Name and pid of each process that we killed, other than the main one.
        self.killed: list[dict[str, str | int]] = []
        self._status: int | None = None
        self._seen: set[int] = set()

    @property
    def main_ended(self) -> bool:
        """Whether the main process has ended."""
        return self._status is not None

    @property
    def exit_code(self) -> int | None:
        """What the main process returned, unless a signal ended it."""
        return None if self._code is None or self._code < 0 else self._code

    @property
    def signal(self) -> int | None:
        """The signal that ended the main process, if one did."""
        return -self._code if self._code is not None and self._code < 0 else None

    @property
    def left(self) -> list[int]:
        """Who is still there: after `kill`, processes that the kernel does not let go."""
        return [pid for pid, _ in _descendants(os.getpid())]

    def reap(self) -> bool:
        """Take leave of those who ended; False when nobody is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            # Its number may be given to another process afterwards.
            if pid == self.main and self._status is None:
                self._status = status

    def kill(self) -> None:
        """Kill everyone who is there now; whoever is born meanwhile needs another call."""
        for pid, name in _descendants(os.getpid()):
            if pid != self.main and pid not in self._seen:
                self._seen.add(pid)
                self.killed.append({"name": name, "pid": pid})
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not self.main_ended or sys.platform != "linux":
            # Without a subreaper, the group is all that we know. Its number is the main process's, and
            # could be another's once that one is gone.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.main, signal.SIGKILL)

    @property
    def _code(self) -> int | None:
        return None if self._status is None else os.waitstatus_to_exitcode(self._status)


def _descendants(ancestor: int) -> list[tuple[int, str]]:
    """Pid and name of all living descendants, nearest first."""
    children: dict[int, list[tuple[int, str]]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        # A process may end while we look.
        with contextlib.suppress(OSError, ValueError, IndexError):
            text = (entry / "stat").read_text(errors="replace")
            # The name stands in brackets, and may hold some itself.
            name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 1 :].split()
            state, parent = rest[0], int(rest[1])
            if state not in "ZX":
                children.setdefault(parent, []).append((int(entry.name), name))
    found = list(children.get(ancestor, ()))
    for pid, _ in found:
        found.extend(children.get(pid, ()))
    return found
