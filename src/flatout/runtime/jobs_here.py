"""The training jobs on this machine: trees of processes, each from its launcher or script down.

A job begins at a command of Flatout's, a launcher, or a script that holds torch. What these start belongs to
them; a script that another script starts as a program is a job of its own. Processes that were handed over to
init belong to the job whose FLATOUT_SESSION they carry, or whose process group or session they are in.
"""

import dataclasses
import os
from collections.abc import Collection, Mapping
from pathlib import Path

from flatout.records.processes import Role
from flatout.records.runs import MANIFEST
from flatout.records.session import KEEPER_VARIABLE, SESSION_VARIABLE
from flatout.runtime.process_table import Seen, Table, was_handed_over
from flatout.runtime.roles import (
    flatout_command,
    role_of,
    script_name,
    short_command,
    why_orphan,
)

_MARKS = (SESSION_VARIABLE, KEEPER_VARIABLE)
# Commands that look at jobs and are none.
_ONLOOKERS = ("ps", "stop", "watch", "export", "fleet")
# A run folder lies a few folders above the order that a process carries.
_ABOVE = 6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """A tree of processes, parents first; `orphans` says of some why they are that."""

    head: Seen
    members: tuple[Seen, ...]
    roles: Mapping[int, Role]
    orphans: Mapping[int, str]
    # Why those belong to it who do not descend from its head.
    joined: Mapping[int, str]
    run_folder: Path | None = None

    @property
    def main(self) -> Seen:
        """The process that the user means: the script or launcher, not what Flatout put above it."""
        programs = [one for one in self.members if self.roles[one.pid] not in ("flatout", "keeper", "helper")]
        return programs[0] if programs else self.head

    @property
    def run(self) -> str | None:
        """The id of its run, where Flatout runs it."""
        return self.run_folder.name if self.run_folder else None

    @property
    def command(self) -> str:
        """What was started, shortened."""
        return short_command(self.main)

    @property
    def name(self) -> str:
        """What it is called in lists."""
        return self.run or self.command

    @property
    def names(self) -> set[str]:
        """What a user may call it, beside its pid and the beginning of its run's id."""
        return {self.name, self.command, script_name(self.main)} - {""}


def jobs_in(table: Table, *, holders: Collection[int] = ()) -> list[Job]:
    """All jobs, oldest first; `holders` are pids known to hold a GPU."""
    roles = {pid: role_of(process, table) for pid, process in table.by_pid.items()}
    orphans = {
        pid: why for pid, process in table.by_pid.items() if (why := why_orphan(process, roles[pid], table))
    }
    training = {pid for pid in table.by_pid if _trains(table.by_pid[pid], roles[pid])}
    training |= {pid for pid in holders if pid in table.by_pid}
    training -= {os.getpid()}
    heads = {pid: _head_of(pid, table, roles, training, orphans) for pid in sorted(training)}
    joined = _joined(table, training, heads, orphans)
    groups: dict[int, list[Seen]] = {}
    for pid in (*training, *joined):
        groups.setdefault(joined[pid][0] if pid in joined else heads[pid], []).append(table.by_pid[pid])
    jobs = [_job(head, found, table, roles, orphans, joined, heads) for head, found in groups.items()]
    return sorted(jobs, key=lambda job: (job.head.start, job.head.pid))


def _trains(process: Seen, role: Role) -> bool:
    if flatout_command(process) in _ONLOOKERS:
        return False
    return role in ("flatout", "launcher", "keeper", "script", "rank", "loader worker", "compile worker") or (
        role == "worker" and process.holds_torch is True
    )


def _head_of(
    pid: int, table: Table, roles: Mapping[int, Role], training: set[int], orphans: Mapping[int, str]
) -> int:
    """The pid of the process at the head of the job that this one is in."""
    process = table.by_pid[pid]
    if pid in orphans:
        # What one dead script left behind belongs together: its copies are in one group.
        group = [one for one in orphans if table.by_pid[one].group == process.group]
        return min(group, key=lambda one: (table.by_pid[one].start, one)) if process.forked else pid
    above = next((one for one in table.ancestors_of(pid) if one.pid in training), None)
    if above is None or _begins_a_job(process, above, roles):
        return pid
    return _head_of(above.pid, table, roles, training, orphans)


def _begins_a_job(process: Seen, above: Seen, roles: Mapping[int, Role]) -> bool:
    role, over = roles[process.pid], roles[above.pid]
    if role == "flatout":
        return True
    if role in ("script", "launcher") and over not in ("flatout", "keeper", "launcher"):
        session = process.variable(SESSION_VARIABLE)
        return session is None or session != above.variable(SESSION_VARIABLE)
    return False


def _joined(
    table: Table, training: set[int], heads: Mapping[int, int], orphans: Mapping[int, str]
) -> dict[int, tuple[int, str]]:
    """Of processes outside of the trees: the head whose job they belong to, and why."""
    led = {pid: head for pid, head in heads.items() if pid not in orphans}
    marks: dict[str, int] = {}
    for pid, head in led.items():
        for name in _MARKS:
            if value := table.by_pid[pid].variable(name):
                marks.setdefault(f"{name}={value}", head)
    found: dict[int, tuple[int, str]] = {}
    for pid, process in table.by_pid.items():
        if pid in led or pid == os.getpid() or _is_below(process, table, training):
            continue
        for name in _MARKS:
            marked = marks.get(f"{name}={process.variable(name)}")
            if marked is not None:
                found[pid] = (marked, f"it carries the job's {name}")
        if pid not in found and was_handed_over(process, table):
            for kind, leader in (("process group", process.group), ("session", process.session)):
                if leader in led and leader != pid:
                    found[pid] = (led[leader], f"it is in the job's {kind}")
                    break
    return found


def _is_below(process: Seen, table: Table, training: set[int]) -> bool:
    return any(above.pid in training for above in table.ancestors_of(process.pid))


def _job(
    head: int,
    found: list[Seen],
    table: Table,
    roles: Mapping[int, Role],
    orphans: Mapping[int, str],
    joined: Mapping[int, tuple[int, str]],
    heads: Mapping[int, int],
) -> Job:
    """The job with everything below its processes that is no job of its own."""
    members: dict[int, Seen] = {}

    def add(process: Seen) -> None:
        if process.pid in members or heads.get(process.pid, head) != head:
            return
        members[process.pid] = process
        for child in table.children_of(process.pid):
            if child.pid != os.getpid():
                add(child)

    for process in sorted(found, key=lambda one: (one.pid != head, one.start, one.pid)):
        add(process)
    return Job(
        head=table.by_pid[head],
        members=tuple(members.values()),
        roles={pid: roles[pid] for pid in members},
        orphans={pid: orphans[pid] for pid in members if pid in orphans},
        joined={pid: joined[pid][1] for pid in members if pid in joined},
        run_folder=_run_folder(members.values()),
    )


def _run_folder(members: Collection[Seen]) -> Path | None:
    for process in members:
        if order := process.variable(SESSION_VARIABLE):
            for folder in list(Path(order).parents)[:_ABOVE]:
                if (folder / MANIFEST).is_file():
                    return folder
    return None


def left_behind(jobs: Collection[Job]) -> list[Seen]:
    """Every process that is certain to be of no use to anybody."""
    return [process for job in jobs for process in job.members if process.pid in job.orphans]
