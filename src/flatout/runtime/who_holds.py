"""Who holds the GPUs and what each process is doing: drivers' lists and the machine's, put together."""

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import psutil

from flatout.hardware.machine import discover_devices
from flatout.hardware.protocol import DeviceSource
from flatout.records.device import Device, DeviceProcess, DeviceSample
from flatout.records.processes import HeldDevice, Holder, JobHere, JobProcess, ProcessesHere, ProcessState
from flatout.runtime.jobs_here import Job, jobs_in
from flatout.runtime.process_table import Seen, Table, read_table
from flatout.runtime.roles import short_command

SAMPLED_S = 1.0
# The kernel counts processor time in hundredths of a second.
_LEAST_CPU_S = 0.009
_STATES: tuple[ProcessState, ...] = ("running", "unknown", "idle", "orphan", "zombie")
_NOT_HERE = "the driver's pid belongs to no process that can be seen from here"


@dataclasses.dataclass(frozen=True)
class _State:
    state: ProcessState
    reason: str


def look_around(
    sources: Sequence[DeviceSource],
    *,
    look: Callable[[], Table] = read_table,
    sampled_s: float = SAMPLED_S,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[ProcessesHere, Table, list[Job]]:
    """Everything that `flatout ps` tells, and what it was made from."""
    devices, samples, vendors = discover_devices(sources)
    pairs = [pair for pair in zip(devices, samples, strict=True) if pair[0].vendor != "cpu"]
    table = look()
    jobs = jobs_on(pairs, table)
    members = [one for job in jobs for one in job.members]
    sleep(sampled_s)
    used = {one.pid: _cpu_share(one, sampled_s) for one in members}
    problems = [status.problem for status in vendors if status.problem]
    return put_together(pairs, table, jobs, used, sampled_s, problems), table, jobs


def jobs_on(pairs: Iterable[tuple[Device, DeviceSample]], table: Table) -> list[Job]:
    """The jobs of this machine; who holds a GPU is one."""
    return jobs_in(
        table,
        holders={found.pid for _, sample in pairs for found in _listed(sample) if is_same(found, table)},
    )


def put_together(
    pairs: Sequence[tuple[Device, DeviceSample]],
    table: Table,
    jobs: Sequence[Job],
    used: Mapping[int, float | None],
    sampled_s: float,
    problems: Iterable[str] = (),
) -> ProcessesHere:
    """The document from its parts: GPUs with their samples, jobs, and what of a core each process used."""
    states = {one.pid: _state(one, job, used[one.pid]) for job in jobs for one in job.members}
    for _, sample in pairs:
        for found in _listed(sample):
            if found.pid in states and is_same(found, table):
                states[found.pid] = _state_on_gpu(found, sample, states[found.pid])
    whose = {one.pid: job for job in jobs for one in job.members}
    held = tuple(_held(device, sample, table, whose, states) for device, sample in pairs)
    on_gpus = _gpu_memory(held)
    return ProcessesHere(
        devices=held,
        jobs=tuple(_job(job, states, used, on_gpus, bool(held)) for job in jobs),
        sampled_s=sampled_s,
        notes=(*_notes(held), *_hidden(table, whose), *problems),
    )


def is_same(found: DeviceProcess, table: Table) -> bool:
    """Whether the process that a driver lists is the one that has its pid here.

    NVML's were compared by the device files that they hold open; others are by their name.
    """
    process = table.get(found.pid)
    if process is None or found.name is None or found.gone:
        return False
    names = {process.name, *(word.rsplit("/", 1)[-1] for word in process.words[:1])}
    return found.gone is False or found.name in names


# States


def _state(process: Seen, job: Job, cpu_share: float | None) -> _State:
    if process.zombie:
        return _State("zombie", f"it has ended, and its parent {process.parent} has not taken notice")
    if process.pid in job.orphans:
        return _State("orphan", job.orphans[process.pid])
    if process.status == psutil.STATUS_STOPPED:
        return _State("idle", "stopped by a signal; kill -CONT lets it go on")
    if cpu_share is None:
        return _State("unknown", "this user may not see its processor time")
    if cpu_share > 0:
        return _State("running", f"{100 * cpu_share:.0f} % of a core while we looked")
    return _State("idle", "no processor time while we looked")


def _state_on_gpu(found: DeviceProcess, sample: DeviceSample, otherwise: _State) -> _State:
    """What it does on the GPU says more than what it does on the host; that it is left behind, most."""
    if otherwise.state in ("orphan", "zombie"):
        return otherwise
    if found.active_share is not None:
        if found.active_share > 0:
            return _State("running", f"kernels in {100 * found.active_share:.0f} % of the last seconds")
        return _State("idle", "no kernel in the last seconds")
    if sample.kernel_running_share == 0:
        return _State("idle", "nobody has run a kernel on its GPU lately")
    if sample.kernel_running_share is not None and len(_listed(sample)) == 1:
        return _State("running", "its GPU runs kernels, and nobody else is listed there")
    return _State("unknown", found.unknown.get("active_share", "the driver does not tell"))


def _cpu_share(process: Seen, seconds: float) -> float | None:
    """Of one core, since it was seen; None where this user may not know."""
    if process.cpu_s is None:
        return None
    try:
        now = psutil.Process(process.pid)
        times = now.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    except psutil.Error:
        return None
    used = times.user + times.system - process.cpu_s
    return used / seconds if used >= _LEAST_CPU_S else 0.0


# Records


def _held(
    device: Device,
    sample: DeviceSample,
    table: Table,
    whose: Mapping[int, Job],
    states: Mapping[int, _State],
) -> HeldDevice:
    holders = None
    if sample.processes is not None:
        holders = tuple(_holder(found, table, whose, states) for found in sample.processes)
    known = [found.memory_bytes for found in holders or ()]
    used = sample.memory_used_bytes
    listed = sum(held for held in known if held is not None) if None not in known else None
    unlisted = (
        max(0, used - listed) if used is not None and listed is not None and holders is not None else None
    )
    reasons = {name: sample.unknown.get(name, sample.state_reason) for name in ("processes",)}
    reasons["memory_used_bytes"] = sample.unknown.get("memory_used_bytes", sample.state_reason)
    reasons["memory_total_bytes"] = device.unknown.get("memory_total_bytes", "")
    reasons["uuid"] = device.unknown.get("uuid", "")
    reasons["unlisted_bytes"] = "what all its processes hold is not known"
    return HeldDevice(
        index=device.index,
        uuid=device.uuid,
        vendor=device.vendor,
        name=device.name,
        memory_used_bytes=used,
        memory_total_bytes=device.memory_total_bytes,
        processes=holders,
        unlisted_bytes=unlisted,
        unknown={name: why for name, why in reasons.items() if why},
    )


def _holder(
    found: DeviceProcess, table: Table, whose: Mapping[int, Job], states: Mapping[int, _State]
) -> Holder:
    here = table.get(found.pid) if is_same(found, table) else None
    job = whose.get(found.pid) if here is not None else None
    if found.gone:
        state = _State("zombie", "there is no such process any more, and the driver still lists its memory")
    elif here is None:
        state = _State("unknown", found.unknown.get("name", _NOT_HERE))
    else:
        state = states[found.pid]
    reason = found.unknown.get("name", _NOT_HERE)
    return Holder(
        pid=found.pid,
        user=here.user if here else found.user,
        job=job.name if job else None,
        job_pid=job.head.pid if job else None,
        memory_bytes=found.memory_bytes,
        age_s=here.age_s if here else found.age_s,
        state=state.state,
        state_reason=state.reason,
        kind=found.kind,
        active_share=found.active_share,
        unknown={**dict.fromkeys(("user", "job", "job_pid", "age_s"), reason), **found.unknown},
    )


def _job(
    job: Job,
    states: Mapping[int, _State],
    used: Mapping[int, float | None],
    on_gpus: Mapping[int, int | None],
    has_gpus: bool,
) -> JobHere:
    processes = tuple(
        JobProcess(
            pid=one.pid,
            parent_pid=one.parent,
            role=job.roles[one.pid],
            name=one.name,
            command=short_command(one),
            user=one.user,
            age_s=one.age_s,
            state=states[one.pid].state,
            state_reason=states[one.pid].reason,
            cpu_share=used[one.pid],
            host_memory_bytes=one.memory_bytes,
            gpu_memory_bytes=on_gpus.get(one.pid, 0 if has_gpus else None),
            unknown={"gpu_memory_bytes": "the driver does not say" if has_gpus else "no GPU here"},
        )
        for one in job.members
    )
    return JobHere(
        name=job.name,
        pid=job.head.pid,
        command=job.command,
        user=job.head.user,
        age_s=job.head.age_s,
        state=_of_all([one.state for one in processes]),
        processes=processes,
        run=job.run,
        run_folder=str(job.run_folder) if job.run_folder else None,
        unknown={"user": "the operating system does not say"},
    )


def _of_all(states: Iterable[ProcessState]) -> ProcessState:
    """A job runs if any of its processes does, and is an orphan only where nothing else is left of it."""
    present = set(states)
    return next(state for state in _STATES if state in present)


def _gpu_memory(devices: Iterable[HeldDevice]) -> dict[int, int | None]:
    found: dict[int, int | None] = {}
    for device in devices:
        for holder in device.processes or ():
            before = found.get(holder.pid, 0)
            known = before is not None and holder.memory_bytes is not None
            found[holder.pid] = before + holder.memory_bytes if known else None  # type: ignore[operator]
    return found


def _listed(sample: DeviceSample) -> tuple[DeviceProcess, ...]:
    return sample.processes or ()


def _notes(devices: Sequence[HeldDevice]) -> Iterable[str]:
    for device in devices:
        if device.processes is None:
            yield f"GPU {device.index}: who holds it is not known: {device.unknown.get('processes', '')}"


def _hidden(table: Table, whose: Mapping[int, Job]) -> Iterable[str]:
    others = [one for pid, one in table.by_pid.items() if one.holds_torch is None and pid not in whose]
    if others:
        users = ", ".join(sorted({one.user or "?" for one in others}))
        count = "1 Python process" if len(others) == 1 else f"{len(others)} Python processes"
        yield f"{count} of {users} may train: this user may not look into what is not his own"
