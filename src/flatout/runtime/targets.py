"""Which processes a user means by a job's name or a pid, and which of those are never touched."""

import dataclasses
import os
from collections.abc import Collection, Mapping, Sequence

import psutil

from flatout.records.errors import CallerMistake, nearest
from flatout.records.processes import Role
from flatout.runtime.jobs_here import Job
from flatout.runtime.process_table import Seen, Table
from flatout.runtime.roles import PROGRAMS, flatout_command, role_of, short_command


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """A tree that is to end: whom to ask first, and everyone in it."""

    name: str
    head: Seen
    members: tuple[Seen, ...]
    roles: Mapping[int, Role]
    # Why each of them belongs to it.
    why: Mapping[int, str]
    # Those who may have something to save, and are asked; the others end with them, or are told to.
    asked: frozenset[int]
    # A whole job: whatever carries its marks belongs to it. Else a part, which shares them with the others.
    whole: bool = False
    notes: tuple[str, ...] = ()


def targets_for(wanted: Sequence[str], table: Table, jobs: Sequence[Job]) -> list[Target]:
    """What is meant by each of these names and pids. Raises CallerMistake before anything was touched."""
    found = {}
    for name in wanted:
        target = _by_pid(int(name), table, jobs) if name.isdigit() else _of_job(_named(name, jobs), table)
        _refuse_the_untouchable(target, table)
        found[target.head.pid] = target
    inner = {one.pid for target in found.values() for one in target.members} - set(found)
    inner |= {pid for pid in found for other in found.values() if other.head.pid != pid and pid in other.why}
    return [target for pid, target in found.items() if pid not in inner]


def job_for(name: str, jobs: Sequence[Job], *, command: str) -> Job:
    """The job that is meant by a name or the pid of one of its processes, for a command that ends nobody."""
    if not name.isdigit():
        return _named(name, jobs, command=command)
    for job in jobs:
        if any(one.pid == int(name) for one in job.members):
            return job
    raise CallerMistake(
        f"process {name} belongs to no training job that can be seen here",
        expected="the name of a job, or the pid of one of its processes",
        remedy="flatout ps   # lists them",
    )


def orphans_among(jobs: Sequence[Job], table: Table, wanted: Sequence[str] = ()) -> list[Target]:
    """What each dead job left behind; of these names and pids alone, where there are any."""
    found = []
    for job in jobs:
        heads = [one for one in job.members if one.pid in job.orphans]
        named = not wanted or any(str(one.pid) in wanted for one in job.members) or job.names & set(wanted)
        if heads and named:
            # Ranks may have something to save; workers never do.
            asked = frozenset(one.pid for one in heads if job.roles[one.pid] in PROGRAMS)
            target = _tree(job.name, heads[0], heads, table, why=job.orphans, asked=asked)
            _refuse_the_untouchable(target, table)
            found.append(target)
    return found


def _named(name: str, jobs: Sequence[Job], *, command: str = "stop") -> Job:
    fitting = [job for job in jobs if name in job.names]
    if not fitting and name:
        fitting = [job for job in jobs if job.run is not None and job.run.startswith(name)]
    if not fitting and name:
        fitting = [job for job in jobs if job.command.startswith(name)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise CallerMistake(
            f"{name!r} is the name of {len(fitting)} jobs",
            expected="one of these pids: "
            + "; ".join(f"{job.head.pid} ({job.name}, {job.head.user})" for job in fitting),
            remedy=f"flatout {command} {fitting[0].head.pid}   # by its pid",
        )
    names = sorted(name for job in jobs for name in job.names)
    near = nearest(name, names)
    raise CallerMistake(
        f"no job {name!r} runs here",
        expected=f"one of: {', '.join(names)}" if names else "the name or pid of a job, but none runs here",
        remedy=f"did you mean {near!r}?" if near else "flatout ps   # lists them",
    )


def _by_pid(pid: int, table: Table, jobs: Sequence[Job]) -> Target:
    process = table.get(pid)
    if process is None:
        raise CallerMistake(
            f"no process {pid}",
            expected="the pid of a process that this machine shows to this user",
            remedy="flatout ps   # lists the jobs that run here",
        )
    for job in jobs:
        if pid == job.head.pid and pid not in job.orphans:
            return _of_job(job, table)
    job_above = next((job for job in jobs if any(pid == one.pid for one in job.members)), None)
    note = f"a part of {job_above.name} ({job_above.head.pid}), which goes on" if job_above else ""
    if job_above is not None and pid in job_above.orphans:
        note = job_above.orphans[pid]
    role = role_of(process, table)
    asked = frozenset({pid}) if role in PROGRAMS else _programs_below(process, table) or frozenset({pid})
    name = short_command(process)
    return _tree(name, process, [process], table, asked=asked, notes=(note,) if note else ())


def _of_job(job: Job, table: Table) -> Target:
    tree = _tree(job.name, job.head, job.members, table, why=job.joined, asked=_whom_to_ask(job, table))
    return dataclasses.replace(tree, whole=True)


def _whom_to_ask(job: Job, table: Table) -> frozenset[int]:
    """Whoever would have got a SIGTERM of the user's own: what `flatout run` runs, not `flatout run` itself.

    Other commands of ours try a script out: they put it away themselves.
    """
    if flatout_command(job.head) != "run":
        return frozenset({job.head.pid})
    below = _programs_below(job.head, table)
    return below or frozenset(child.pid for child in table.children_of(job.head.pid) or [job.head])


def _programs_below(head: Seen, table: Table) -> frozenset[int]:
    """The nearest processes that train; shells and other wrappers would die without passing a signal on."""
    found: set[int] = set()
    for child in table.children_of(head.pid):
        trains = role_of(child, table) in PROGRAMS
        found |= {child.pid} if trains else _programs_below(child, table)
    return frozenset(found)


def _tree(
    name: str,
    head: Seen,
    members: Collection[Seen],
    table: Table,
    *,
    asked: frozenset[int],
    why: Mapping[int, str] | None = None,
    notes: tuple[str, ...] = (),
) -> Target:
    """The members, and everyone below them."""
    reasons: dict[int, str] = {}
    for one in members:
        reasons.setdefault(one.pid, (why or {}).get(one.pid) or ("" if one is head else _below(one, table)))
        for other in table.descendants_of(one.pid):
            if other.pid != os.getpid():
                reasons.setdefault(other.pid, _below(other, table))
    reasons[head.pid] = reasons[head.pid] or "it is the one that was named"
    return Target(
        name=name,
        head=head,
        members=tuple(table.by_pid[pid] for pid in reasons),
        roles={pid: role_of(table.by_pid[pid], table) for pid in reasons},
        why=reasons,
        asked=asked,
        notes=notes,
    )


def _below(process: Seen, table: Table) -> str:
    parent = table.parent_of(process)
    return f"a child of {process.parent}" + (f" ({parent.name})" if parent else "")


def _refuse_the_untouchable(target: Target, table: Table) -> None:
    own = {os.getpid()} | {one.pid for one in table.ancestors_of(os.getpid())}
    for one in target.members:
        if one.zombie and one is not target.head:
            continue  # gone already
        reason = _untouchable(one, own)
        if reason:
            which = f"process {one.pid}" if one is target.head else f"{target.name}: process {one.pid} in it"
            raise CallerMistake(
                f"{which} is not to be ended: {reason}",
                expected="a job, or a process, of this user's that Flatout does not run in",
                remedy="flatout ps   # lists the jobs that run here",
            )


def _untouchable(process: Seen, own: Collection[int]) -> str:
    if process.pid == 1:
        return "it is the first process of this machine or container"
    if process.pid == os.getpid():
        return "it is this very command"
    if process.pid in own:
        return "this command runs in it"
    if process.zombie:
        return f"it has ended; process {process.parent}, its parent, has not taken notice yet"
    if process.of_the_kernel:
        return "it is a thread of the kernel's"
    if os.geteuid() != 0 and process.user is not None and process.user != _this_user():
        return f"it belongs to {process.user}, and this is {_this_user()}"
    return ""


def _this_user() -> str:
    return psutil.Process().username()
