"""The job whose power is asked for, and the devices that are its own."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import psutil

from flatout.hardware.power_limits import PowerControls, PowerRefused
from flatout.monitor.power.measuring import Watched
from flatout.monitor.power.restoring import same
from flatout.records.device import Device, DeviceSample
from flatout.records.errors import CallerMistake
from flatout.records.live import LiveJob
from flatout.records.power import PowerClaim, PowerNow
from flatout.records.processes import JobHere
from flatout.runtime.jobs_here import Job
from flatout.runtime.live_jobs import live_jobs

Pair = tuple[Device, DeviceSample]


def watched(job: Job, pairs: Sequence[Pair], wanted: Collection[int] = ()) -> Watched:
    """The job and its devices. Refuses devices on which others compute, too: caps would slow them as well."""
    live = live_reader(job)
    devices = _own_devices(job, pairs, live(), wanted)
    _refuse_shared(job, pairs, devices)
    return Watched(name=job.name, devices=tuple(devices), live=live, is_alive=lambda: _is_alive(job))


def live_reader(job: Job) -> Callable[[], LiveJob | None]:
    """Reads how a job does, each time it is called; None where it does not run under `flatout run`."""
    if job.run_folder is None:
        return lambda: None
    here = JobHere(
        name=job.name,
        pid=job.head.pid,
        command=job.command,
        user=None,
        age_s=None,
        state="running",
        processes=(),
        run_folder=str(Path(job.run_folder)),
    )

    def read() -> LiveJob | None:
        found = live_jobs([here])
        return found[0] if found and found[0].state != "ended" else None

    return read


def power_now(pair: Pair, controls: PowerControls, kept: Sequence[PowerClaim] = ()) -> PowerNow:
    """What one device draws and may draw."""
    device, sample = pair
    unknown = {name: why for name, why in {**device.unknown, **sample.unknown}.items() if why}
    limit_mw, default_mw = sample.power_limit_mw, device.power_limit_default_mw
    low_mw, high_mw = device.power_limit_min_mw, device.power_limit_max_mw
    try:
        limits = controls.for_device(device).limits(device.uuid or "")
        limit_mw, default_mw = limits.limit_mw, limits.default_mw
        low_mw, high_mw = limits.min_mw, limits.max_mw
    except PowerRefused as refused:
        unknown = {**dict.fromkeys(("limit_mw", "min_mw", "max_mw"), refused.reason), **unknown}
    before = [
        claim.found_mw
        for claim in kept
        if claim.uuid == device.uuid
        and limit_mw is not None
        and any(same(limit_mw, m) for m in claim.ours_mw)
    ]
    return PowerNow(
        index=device.index,
        uuid=device.uuid,
        name=device.name,
        draw_mw=sample.power_draw_mw,
        limit_mw=limit_mw,
        default_mw=default_mw,
        min_mw=low_mw,
        max_mw=high_mw,
        temperature_c=sample.temperature_c,
        temperature_slowdown_c=device.temperature_slowdown_c,
        throttle_reasons=sample.throttle_reasons,
        kept_from_mw=before[0] if before else None,
        unknown={**unknown, "kept_from_mw": "nobody asked for a cap to be kept"},
    )


def chosen(pairs: Sequence[Pair], wanted: Collection[int]) -> list[Pair]:
    """The devices of these numbers, of the first vendor that has them all; all devices without a number."""
    if not wanted:
        return list(pairs)
    for vendor in dict.fromkeys(device.vendor for device, _ in pairs):
        own = [pair for pair in pairs if pair[0].vendor == vendor]
        if set(wanted) <= {device.index for device, _ in own}:
            return [pair for pair in own if pair[0].index in wanted]
    known = {device.index for device, _ in pairs}
    missing = sorted(set(wanted) - known)
    raise CallerMistake(
        f"no GPU {missing[0]}" if missing else f"no vendor's GPUs have the numbers {sorted(wanted)}",
        expected=f"one of: {', '.join(map(str, sorted(known)))}" if known else "a GPU, but there is none",
        remedy="flatout power   # lists them",
    )


def _own_devices(
    job: Job, pairs: Sequence[Pair], live: LiveJob | None, wanted: Collection[int]
) -> list[Device]:
    if wanted:
        return [device for device, _ in chosen(pairs, wanted)]
    if live is not None and live.devices:
        own = [device for device, _ in pairs if device.uuid in live.devices]
    else:
        members = {one.pid for one in job.members}
        own = [
            device
            for device, sample in pairs
            if any(found.pid in members for found in sample.processes or ())
        ]
    if own:
        return own
    raise CallerMistake(
        f"{job.name} is on no GPU that can be seen from here",
        expected="a job that holds a GPU of this machine",
        remedy="flatout power --gpu 0 " + str(job.head.pid) + "   # if you know which are its own",
    )


def _refuse_shared(job: Job, pairs: Sequence[Pair], devices: Sequence[Device]) -> None:
    members = {one.pid for one in job.members}
    for device, sample in pairs:
        others = [
            found
            for found in sample.processes or ()
            if found.pid not in members and found.name is not None and found.kind == "compute"
        ]
        if device in devices and others:
            raise CallerMistake(
                f"process {others[0].pid} ({others[0].name}) computes on GPU {device.index}, too",
                expected="a GPU that this job has for itself: a cap would slow the other one as well",
                remedy="flatout ps   # who holds which GPU",
            )


def _is_alive(job: Job) -> bool:
    try:
        process = psutil.Process(job.main.pid)
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True
