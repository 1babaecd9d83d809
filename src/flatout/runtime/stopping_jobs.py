"""Ends a tree of processes, and nothing else: asks it to save, waits, tells the rest to end, then kills.

Every process is pinned before anything is sent, and the tree is looked at again and again: what it starts
meanwhile belongs to it, and so does what it left to init on the way.
"""

import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence

import psutil

from flatout.records.processes import Role
from flatout.records.session import KEEPER_VARIABLE, SESSION_VARIABLE
from flatout.records.stopping import StoppedJob, StoppedProcess
from flatout.runtime.pinned import Pin
from flatout.runtime.process_table import Seen, Table, read_table, was_handed_over
from flatout.runtime.roles import PROGRAMS, role_of, short_command
from flatout.runtime.targets import Target

GRACE_S = 60.0
# After the last one who was asked: workers notice by themselves that they are alone.
_BY_THEMSELVES_S = 2.0
# `flatout run` writes down how the job went; a checkpoint that was begun is finished.
_WRITING_DOWN_S = 20.0
_TOLD_S = 5.0
_KILLED_S = 10.0
_LOOK_S = 0.1
_MARKS = (SESSION_VARIABLE, KEEPER_VARIABLE)
_FINISH: frozenset[Role] = frozenset({"flatout", "keeper", "checkpoint writer"})


@dataclasses.dataclass(frozen=True)
class Stage:
    """What is going on, since when, and for how long at most."""

    what: str
    gone_s: float
    most_s: float


@dataclasses.dataclass
class _Member:
    pin: Pin
    role: Role
    why: str
    asked: bool = False
    signals: list[str] = dataclasses.field(default_factory=list)
    gone_after_s: float | None = None


class TreeEnding:
    """One tree on its way out."""

    def __init__(self, target: Target, *, look: Callable[[], Table] = read_table) -> None:
        self._target = target
        self._look = look
        self._began = time.monotonic()
        self._notes = list(target.notes)
        self._members: dict[tuple[int, float], _Member] = {}
        for one in target.members:
            self._add(one, target.roles[one.pid], target.why[one.pid])

    def stages(self, grace_s: float) -> Iterator[Stage]:
        """Ask and let save, tell the rest, kill what stays: one look a turn. What is left is in `result`."""
        if self._target.asked:
            yield from self._let_save(grace_s)
        yield from self._tell()
        yield from self._kill()

    def close(self) -> None:
        """Let go of everybody."""
        for member in self._members.values():
            member.pin.close()

    # The three stages

    def _let_save(self, grace_s: float) -> Iterator[Stage]:
        """Ask those who may have something to save, and wait while they do, or others finish for them."""
        self._ask([member for member in self._living() if member.pin.pid in self._target.asked])
        asked_at = time.monotonic()
        alone_since: float | None = None
        while (living := self._living()) and (gone_s := time.monotonic() - asked_at) < grace_s:
            yield Stage(_saving_words(living), gone_s, grace_s)
            self._look_again()
            if any(member.asked for member in self._living()):
                alone_since = None
                continue
            alone_since = alone_since or time.monotonic()
            if not self._is_worth_waiting_for(self._living(), time.monotonic() - alone_since):
                return

    def _is_worth_waiting_for(self, living: list[_Member], alone_s: float) -> bool:
        """Nobody who was asked is left. Scripts whose launcher died without a word to them are asked now."""
        if alone_s < _BY_THEMSELVES_S:
            return True
        unasked = [member for member in living if member.role in PROGRAMS]
        self._ask(unasked)
        finishing = any(member.role in _FINISH for member in living)
        return bool(unasked) or (finishing and alone_s < _WRITING_DOWN_S)

    def _tell(self) -> Iterator[Stage]:
        """There is nothing to save any more: everybody else is to end, in the way they are used to."""
        self._look_again()
        for member in self._living():
            if not member.asked:
                self._send(member, signal.SIGTERM)
        self._let_go_on()
        began = time.monotonic()
        # Whoever was asked and is still there has had his time.
        while any(not member.asked for member in self._living()):
            if (gone_s := time.monotonic() - began) >= _TOLD_S:
                return
            yield Stage("ending what is left", gone_s, _TOLD_S)
            self._look_again()

    def _kill(self) -> Iterator[Stage]:
        began = time.monotonic()
        while (living := self._living()) and (gone_s := time.monotonic() - began) < _KILLED_S:
            for member in living:
                if "SIGKILL" not in member.signals:
                    self._send(member, signal.SIGKILL)
            yield Stage("killing what stays", gone_s, _KILLED_S)
            self._look_again()

    # What they share

    def _ask(self, members: list[_Member]) -> None:
        for member in members:
            member.asked = True
            self._send(member, signal.SIGTERM)
        self._let_go_on()

    def _send(self, member: _Member, number: signal.Signals) -> None:
        try:
            if member.pin.send(number):
                member.signals.append(number.name)
        except PermissionError:
            self._notes.append(f"this user may not signal {member.pin.pid} ({member.pin.process.user})")
            member.signals.append(f"{number.name} refused")

    def _let_go_on(self) -> None:
        """A stopped process takes no notice of a signal before it goes on."""
        for member in self._living():
            with contextlib.suppress(psutil.Error):
                if psutil.Process(member.pin.pid).status() == psutil.STATUS_STOPPED:
                    self._send(member, signal.SIGCONT)

    def _living(self) -> list[_Member]:
        living = []
        for member in self._members.values():
            if member.gone_after_s is None and member.pin.gone:
                member.gone_after_s = time.monotonic() - self._began
            if member.gone_after_s is None:
                living.append(member)
        return living

    def _look_again(self) -> None:
        """Take in what the tree has started since."""
        table = self._look()
        known = {one.pin.pid: one for one in self._members.values()}
        for process in sorted(table.by_pid.values(), key=lambda one: (one.start, one.pid)):
            why = self._why_ours(process, known, table)
            if why:
                known[process.pid] = self._add(process, role_of(process, table), why)

    def _why_ours(self, process: Seen, known: dict[int, _Member], table: Table) -> str:
        if process.pid == os.getpid() or (process.pid, process.start) in self._members or process.zombie:
            return ""
        parent = known.get(process.parent)
        over = table.get(process.parent)
        if parent is not None and over is not None and over.start == parent.pin.process.start:
            return f"a child of {process.parent}, started meanwhile"
        ours = {value for one in known.values() for value in _marks(one.pin.process)}
        if self._target.whole and any(value in ours for value in _marks(process)):
            return "it carries the job's FLATOUT_SESSION"
        if self._target.whole and was_handed_over(process, table):
            for kind, leader in (("process group", process.group), ("session", process.session)):
                if leader in known and self._still_leads(known[leader], leader, table):
                    return f"it is in the job's {kind}"
        return ""

    def _still_leads(self, leader: _Member, pid: int, table: Table) -> bool:
        """A group outlives its leader, and keeps its number as long; another process there ends it."""
        now = table.get(pid)
        return now is None or now.start == leader.pin.process.start

    def _add(self, process: Seen, role: Role, why: str) -> _Member:
        member = _Member(Pin(process), role, why)
        self._members[process.pid, process.start] = member
        return member

    def result(self, grace_s: float) -> StoppedJob:
        """How it went."""
        self._living()
        return StoppedJob(
            name=self._target.name,
            pid=self._target.head.pid,
            processes=tuple(
                StoppedProcess(
                    pid=member.pin.pid,
                    role=member.role,
                    command=short_command(member.pin.process),
                    why=member.why,
                    signals=tuple(member.signals),
                    gone=member.gone_after_s is not None,
                    after_s=member.gone_after_s,
                )
                for member in self._members.values()
            ),
            grace_s=grace_s,
            took_s=time.monotonic() - self._began,
            notes=tuple(self._notes),
        )


def end_all(
    targets: Sequence[Target],
    grace_s: float,
    on_progress: Callable[[Target, Stage], None] = lambda _target, _stage: None,
    *,
    look: Callable[[], Table] = read_table,
) -> tuple[StoppedJob, ...]:
    """End them by turns: whoever saves for a minute does not keep the others waiting."""
    endings = [TreeEnding(target, look=look) for target in targets]
    going = [(target, ending.stages(grace_s)) for target, ending in zip(targets, endings, strict=True)]
    try:
        while going:
            still = []
            for target, stages in going:
                if (stage := next(stages, None)) is not None:
                    on_progress(target, stage)
                    still.append((target, stages))
            going = still
            time.sleep(_LOOK_S if going else 0)
        return tuple(ending.result(grace_s) for ending in endings)
    finally:
        for ending in endings:
            ending.close()


def _marks(process: Seen) -> list[str]:
    return [value for name in _MARKS if (value := process.variable(name))]


def _saving_words(living: list[_Member]) -> str:
    if any(member.role in PROGRAMS for member in living):
        return f"asked it to save: {len(living)} processes left"
    return f"it has ended: waiting for {len(living)} more"


def would_send(target: Target, grace_s: float) -> StoppedJob:
    """The same as a plan: who would get which signals, and why."""

    def signals(one: Seen) -> tuple[str, ...]:
        if one.pid in target.asked:
            return ("SIGTERM", f"SIGKILL after {grace_s:g} s")
        told = "SIGTERM after the others" if target.asked else "SIGTERM"
        return (told, f"SIGKILL {_TOLD_S:g} s later")

    return StoppedJob(
        name=target.name,
        pid=target.head.pid,
        processes=tuple(
            StoppedProcess(
                pid=one.pid,
                role=target.roles[one.pid],
                command=short_command(one),
                why=target.why[one.pid],
                signals=signals(one),
            )
            for one in target.members
        ),
        grace_s=grace_s,
        took_s=None,
        notes=target.notes,
    )
