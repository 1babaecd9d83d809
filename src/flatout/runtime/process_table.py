"""Every process of this machine at one instant, with what tells training jobs from the rest.

A process is known by its pid and the time of its start: a number that was given to another process is not it.
"""

import contextlib
import dataclasses
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import psutil

from flatout.records.errors import EnvironmentProblem
from flatout.records.session import KEEPER_VARIABLE, SESSION_VARIABLE

T = TypeVar("T")

RANK_VARIABLE = "RANK"
TORCHRUN_VARIABLE = "TORCHELASTIC_RUN_ID"
# Others may be secret, and are not kept.
_VARIABLES = (SESSION_VARIABLE, KEEPER_VARIABLE, RANK_VARIABLE, TORCHRUN_VARIABLE)
_ATTRIBUTES = ("ppid", "name", "cmdline", "exe", "username", "status", "cpu_times", "memory_info")
_PYTHON = re.compile(r"python[\d.]*(-dbg)?$|pypy[\d.]*$")
# Flags of the kernel's: forked and never became another program; a thread of the kernel's own.
_FORKED, _OF_THE_KERNEL = 0x40, 0x200000
_STATUSES = {
    "R": psutil.STATUS_RUNNING,
    "D": psutil.STATUS_DISK_SLEEP,
    "T": psutil.STATUS_STOPPED,
    "Z": psutil.STATUS_ZOMBIE,
    "X": psutil.STATUS_DEAD,
}
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seen:
    """A process. What the operating system does not tell this user is None."""

    pid: int
    # Together with the pid, its identity; in a unit of the operating system's own.
    start: float
    started_unix_s: float
    parent: int
    group: int | None
    session: int | None
    name: str
    words: tuple[str, ...]
    user: str | None
    status: str
    cpu_s: float | None
    memory_bytes: int | None
    is_python: bool
    # Whether it is a copy of its parent, as forked workers are, and not a program that was started.
    forked: bool | None
    of_the_kernel: bool
    variables: Mapping[str, str] | None
    holds_torch: bool | None

    @property
    def zombie(self) -> bool:
        """Whether it has ended, and its parent has not taken notice."""
        return self.status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)

    @property
    def age_s(self) -> float:
        """How long it has been there."""
        return max(0.0, time.time() - self.started_unix_s)

    def variable(self, name: str) -> str | None:
        """What this variable was when it was started; None also where that cannot be seen."""
        return (self.variables or {}).get(name)


class Table:
    """Processes by pid, and how they descend from each other."""

    def __init__(self, processes: Iterable[Seen]) -> None:
        self.by_pid = {process.pid: process for process in processes}
        self._children: dict[int, list[Seen]] = {}
        for process in sorted(self.by_pid.values(), key=lambda seen: (seen.start, seen.pid)):
            self._children.setdefault(process.parent, []).append(process)

    def get(self, pid: int) -> Seen | None:
        """The process of this pid."""
        return self.by_pid.get(pid)

    def parent_of(self, process: Seen) -> Seen | None:
        """Its parent; None where that is outside of what we see."""
        return self.by_pid.get(process.parent) if process.parent != process.pid else None

    def children_of(self, pid: int) -> list[Seen]:
        """Oldest first."""
        return self._children.get(pid, [])

    def ancestors_of(self, pid: int) -> list[Seen]:
        """Nearest first."""
        found: list[Seen] = []
        seen = self.by_pid.get(pid)
        while seen is not None and (parent := self.parent_of(seen)) is not None and parent not in found:
            found.append(parent)
            seen = parent
        return found

    def descendants_of(self, pid: int) -> list[Seen]:
        """Parents before their children."""
        found: list[Seen] = []
        for child in self.children_of(pid):
            if child.pid != pid:
                found += [child, *self.descendants_of(child.pid)]
        return found


def read_table() -> Table:
    """Look at all processes that can be seen."""
    found = []
    for process in _asked_of_psutil(lambda: list(psutil.process_iter())):
        # It may end while we look.
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            found.append(_seen(process))
    return _with_ourselves(Table(found))


class TableReader:
    """Tables at a fraction of the cost, for whoever looks every few seconds.

    Of a process that was seen before, only what changes is read again; a forked copy that becomes another
    program is a new one.
    """

    # Python processes are looked at as a whole now and then: one may have changed its words.
    ANEW_EVERY = 12
    # In its first minute, one may import torch from one look to the next.
    _YOUNG_S = 60.0

    def __init__(self) -> None:
        self._known: dict[int, Seen] = {}
        # What the kernel said of each: most processes of a machine sleep, and it says the same again.
        self._told: dict[int, bytes] = {}
        self._looks = 0

    def __call__(self) -> Table:
        """Look at all processes that can be seen."""
        if sys.platform != "linux" or not self._known:
            table = read_table()
        else:
            self._looks += 1
            pids = _asked_of_psutil(psutil.pids)
            table = _with_ourselves(Table(filter(None, map(self._again, pids))))
        self._known = table.by_pid
        self._told = {pid: told for pid, told in self._told.items() if pid in self._known}
        return table

    def _again(self, pid: int) -> Seen | None:
        known = self._known.get(pid)
        try:
            if known is None or _has_no_words_yet(known) or self._is_due(known):
                return _seen(psutil.Process(pid))
            told = _told_by_the_kernel(pid)
            if told != self._told.get(pid):
                self._told[pid] = told
                known = _changed(known, _parsed(told))
            if known.is_python and known.holds_torch is False and known.age_s < self._YOUNG_S:
                known = dataclasses.replace(known, holds_torch=_holds_torch(pid))
        except (OSError, psutil.NoSuchProcess):
            return None
        return known

    def _is_due(self, known: Seen) -> bool:
        return known.is_python and (self._looks + known.pid) % self.ANEW_EVERY == 0


def _asked_of_psutil(question: Callable[[], list[T]]) -> list[T]:
    """Its answer; where /proc is missing or something else, it stumbles over an empty list of processes."""
    try:
        return question()
    except (IndexError, OSError) as error:
        raise _nothing_seen() from error


def _with_ourselves(table: Table) -> Table:
    """The table, unless not even this process is in it."""
    if table.get(os.getpid()) is None:
        raise _nothing_seen()
    return table


def _nothing_seen() -> EnvironmentProblem:
    return EnvironmentProblem(
        "this machine's processes cannot be seen",
        expected="a list of processes that holds at least this one (on Linux: /proc)",
        remedy="mount -t proc proc /proc   # in a container or chroot without it",
    )


def _has_no_words_yet(known: Seen) -> bool:
    """Whether it was seen in the middle of becoming a program: the kernel sets the words last."""
    return not known.words and not known.of_the_kernel and not known.zombie


def _changed(known: Seen, stat: Mapping[str, Any]) -> Seen:
    """The same process now; as a whole where it is another one, or has become another program."""
    forked = bool(int(stat["flags"]) & _FORKED)
    if (float(stat["start"]), stat["name"], forked) != (known.start, known.name, known.forked):
        return _seen(psutil.Process(known.pid))
    return dataclasses.replace(
        known,
        parent=int(stat["parent"]),
        group=int(stat["group"]),
        session=int(stat["session"]),
        status=_STATUSES.get(stat["status"], psutil.STATUS_SLEEPING),
        cpu_s=None if known.cpu_s is None else int(stat["ticks"]) / _TICKS_PER_S,
        memory_bytes=None if known.memory_bytes is None else int(stat["pages"]) * _PAGE_BYTES,
    )


def was_handed_over(process: Seen, table: Table) -> bool:
    """Whether it is certain that its parent is not the one that started it.

    A session is inherited, and only its first process is in another one than its parent.
    """
    parent = table.parent_of(process)
    if process.of_the_kernel or process.session in (None, process.pid):
        return False
    return parent is not None and parent.session != process.session


def start_of(pid: int) -> float | None:
    """The second half of a process's identity, now; None when there is no such process."""
    try:
        return float(_stat(pid)["start"]) if sys.platform == "linux" else psutil.Process(pid).create_time()
    except (OSError, psutil.Error, ValueError, IndexError):
        return None


def has_ended(pid: int, start: float) -> bool:
    """Whether this very process is no more: a zombie has ended, and so has one whose pid is another's."""
    if start_of(pid) != start:
        return True
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return True


def _seen(process: psutil.Process) -> Seen:
    pid = process.pid
    with process.oneshot():
        facts = process.as_dict(_ATTRIBUTES)
        created = process.create_time()
    words = tuple(facts["cmdline"] or ())
    python = _is_python(facts["exe"], words)
    stat = _facts_of_linux(pid)
    cpu = facts["cpu_times"]
    return Seen(
        pid=pid,
        start=float(stat["start"]) if stat else created,
        started_unix_s=created,
        parent=facts["ppid"] or 0,
        group=_asked(os.getpgid, pid),
        session=_asked(os.getsid, pid),
        # psutil completes names from command lines; loader workers are known by the kernel's own.
        name=str(stat["name"]) if stat else facts["name"] or "",
        words=words,
        user=facts["username"],
        status=facts["status"] or "",
        cpu_s=cpu.user + cpu.system if cpu else None,
        memory_bytes=facts["memory_info"].rss if facts["memory_info"] else None,
        is_python=python,
        forked=bool(int(stat["flags"]) & _FORKED) if stat else None,
        of_the_kernel=bool(int(stat["flags"]) & _OF_THE_KERNEL) if stat else False,
        variables=_variables(process),
        holds_torch=_holds_torch(pid) if python else False,
    )


def _is_python(program: str | None, words: tuple[str, ...]) -> bool:
    # The program's own file first: a process may rewrite its words.
    candidates = [path for path in (program, words[0] if words else "") if path]
    return any(_PYTHON.match(os.path.basename(path).removesuffix(" (deleted)")) for path in candidates)  # noqa: PTH119


def _facts_of_linux(pid: int) -> dict[str, Any] | None:
    if sys.platform != "linux":
        return None
    try:
        return _stat(pid)
    except OSError as error:
        raise ProcessLookupError(pid) from error


def _stat(pid: int) -> dict[str, Any]:
    return _parsed(_told_by_the_kernel(pid))


def _told_by_the_kernel(pid: int) -> bytes:
    # Without the layers of open(): a machine has thousands of processes.
    file = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    try:
        return os.read(file, 4096)
    finally:
        os.close(file)


def _parsed(told: bytes) -> dict[str, Any]:
    text = told.decode(errors="replace")
    # The name stands in brackets, and may hold some itself.
    rest = text[text.rindex(")") + 2 :].split()
    return {
        "name": text[text.index("(") + 1 : text.rindex(")")],
        "status": rest[0],
        "parent": rest[1],
        "group": rest[2],
        "session": rest[3],
        "flags": rest[6],
        "ticks": int(rest[11]) + int(rest[12]),
        "start": rest[19],
        "pages": rest[21],
    }


def _asked(call: Any, pid: int) -> int | None:
    try:
        return int(call(pid))
    except OSError:
        return None


def _variables(process: psutil.Process) -> dict[str, str] | None:
    try:
        everything = process.environ()
    except (psutil.Error, OSError):
        return None  # another user's, or one that has ended
    return {name: everything[name] for name in _VARIABLES if name in everything}


def _holds_torch(pid: int) -> bool | None:
    """Whether torch's library is in its memory; None where that cannot be seen."""
    try:
        with open(f"/proc/{pid}/maps", "rb") as maps:  # noqa: PTH123
            return any(b"libtorch" in line for line in maps)
    except OSError:
        return None
