"""Sums: a machine at a glance, and the hours that were paid and not used."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from flatout.monitor.fleet.device_findings import is_broken, is_idle, is_throttled
from flatout.monitor.fleet.machines import instances_of
from flatout.records.fleet import FleetDevice, FleetJob, FleetMachine, FleetMachineState, FleetWaste

_HOUR_S = 3600.0


def machines_of(
    devices: Iterable[FleetDevice],
    jobs: Iterable[FleetJob],
    names: Mapping[str, str],
    states: Mapping[str, FleetMachineState],
    over_s: float,
) -> tuple[FleetMachine, ...]:
    """Every machine with a GPU, those that waste most first."""
    by_machine: dict[str, list[FleetDevice]] = {}
    for device in devices:
        by_machine.setdefault(device.machine, []).append(device)
    busy: dict[str, int] = {}
    for job in jobs:
        busy[job.machine] = busy.get(job.machine, 0) + 1
    made = [
        _machine(name, held, busy.get(name, 0), names, states.get(name, "up"), over_s)
        for name, held in by_machine.items()
    ]
    return tuple(sorted(made, key=_pressing))


def waste_of(devices: Sequence[FleetDevice], over_s: float) -> FleetWaste:
    """Where paid hours went, of all GPUs; each hour is counted once."""
    sums = dict.fromkeys((field.name for field in dataclasses.fields(FleetWaste)), 0.0)
    for device in devices:
        for name, seconds in _shares(device, over_s).items():
            sums[f"{name}_gpu_hours"] += seconds / _HOUR_S
            sums[f"{name}_usd"] += (device.usd_per_hour or 0.0) * seconds / _HOUR_S
    unpriced = sum(device.usd_per_hour is None for device in devices)
    return FleetWaste(**{**sums, "unpriced_gpus": unpriced})  # type: ignore[arg-type]


def _shares(device: FleetDevice, over_s: float) -> dict[str, float]:
    """Seconds by why: idle while held is a part of idle, and what clocks lose is a part of the rest."""
    gone_s = min(device.gone_s or 0.0, over_s)
    idle_s = device.idle_s or 0.0
    held_s = min(idle_s, device.idle_held_s or 0.0)
    return {
        "idle": idle_s - held_s,
        "held_idle": held_s,
        "broken": gone_s,
        "throttled": device.throttled_lost_s or 0.0,
        "paid": (device.present_s or 0.0) + gone_s,
    }


def _machine(
    name: str,
    devices: Sequence[FleetDevice],
    jobs: int,
    names: Mapping[str, str],
    state: FleetMachineState,
    over_s: float,
) -> FleetMachine:
    known = [(device, min(device.wasted_s, over_s)) for device in devices if device.wasted_s is not None]
    wasted = [seconds for _, seconds in known]
    dollars = [
        device.usd_per_hour * seconds / _HOUR_S
        for device, seconds in known
        if device.usd_per_hour is not None
    ]
    return FleetMachine(
        name=name,
        instances=instances_of(names, name),
        state=state,
        sources=tuple(sorted({device.source for device in devices})),
        gpus=len(devices),
        gpu_names=tuple(sorted({device.name for device in devices if device.name}))[:8],
        jobs=jobs,
        kernel_running_share=_mean([device.kernel_running_share for device in devices]),
        sm_active_share=_mean([device.sm_active_share for device in devices]),
        memory_used_bytes=_sum([device.memory_used_bytes for device in devices]),
        memory_total_bytes=_sum([device.memory_total_bytes for device in devices]),
        power_w=_sum([device.power_w for device in devices]),
        broken=sum(is_broken(device) for device in devices),
        throttled=sum(is_throttled(device) for device in devices),
        idle=sum(is_idle(device) for device in devices),
        wasted_gpu_hours=sum(wasted) / _HOUR_S if wasted else None,
        wasted_usd=sum(dollars) if dollars else None,
        unknown={} if dollars else {"wasted_usd": "no price is known, or no history"},
    )


def _pressing(machine: FleetMachine) -> tuple[bool, bool, float, float, str]:
    usd, hours = machine.wasted_usd or 0.0, machine.wasted_gpu_hours or 0.0
    return (machine.state == "up", not machine.broken, -usd, -hours, machine.name)


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: Iterable[float | None]) -> float | None:
    known = _known(values)
    return sum(known) / len(known) if known else None


def _sum(values: Iterable[float | None]) -> float | None:
    known = _known(values)
    return sum(known) if known else None
