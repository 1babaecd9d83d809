"""What is wrong with GPUs and machines: broken, out of reach, idle, throttled, underused."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from flatout.hardware.health.memory_errors import XID_APPLICATION, XID_MEANINGS
from flatout.monitor.fleet.policy import (
    HELD_BYTES,
    IDLE_SHARE,
    LOW_SM_SHARE,
    LOW_TENSOR_SHARE,
    LOWERED_LIMIT,
    MOSTLY_RUNNING,
    RECENT_S,
    THROTTLED_S,
    THROTTLED_SHARE,
    UNWANTED_REASONS,
)
from flatout.monitor.fleet.selecting import selector
from flatout.records.fleet import FindingKind, FleetDevice, FleetFinding, FleetMachineState
from flatout.records.words import age, memory_size, percent

_Look = Callable[[FleetDevice], FleetFinding | None]


def device_findings(
    devices: Iterable[FleetDevice], states: Mapping[str, FleetMachineState], explained: set[str]
) -> Iterator[FleetFinding]:
    """One finding a GPU at most, the gravest; what is wrong with GPUs in `explained`, their job explains."""
    listed = list(devices)
    yield from _out_of_reach(listed, states)
    for device in listed:
        if states.get(device.machine, "up") != "up" and device.state == "gone":
            continue
        looks = (_broken,) if device.uuid in explained else (_broken, _idle, _throttled, _underused)
        yield from _first(looks, device)


def is_throttled(device: FleetDevice) -> bool:
    """Whether heat, a brake or a limit that somebody lowered holds its clock down now."""
    return bool(unwanted_reasons(device))


def unwanted_reasons(device: FleetDevice) -> tuple[str, ...]:
    """The reasons that nobody wants: a power cap at its default is what full load looks like."""
    lowered = (
        device.power_limit_w is not None
        and device.power_limit_default_w is not None
        and device.power_limit_w < LOWERED_LIMIT * device.power_limit_default_w
    )
    unwanted = (*UNWANTED_REASONS, *(("power_cap",) if lowered else ()))
    return tuple(reason for reason in device.throttle_reasons if reason in unwanted)


def is_idle(device: FleetDevice) -> bool:
    """Whether nothing ran on it for a quarter of an hour in which it was there."""
    share = device.kernel_running_share
    return device.state == "up" and device.recently_seen and share is not None and share < IDLE_SHARE


def is_broken(device: FleetDevice) -> bool:
    """Whether it is down, gone, or has shown faults of its own."""
    return bool(_faults(device))


def _first(looks: Sequence[_Look], device: FleetDevice) -> Iterator[FleetFinding]:
    for look in looks:
        found = look(device)
        if found is not None:
            yield found
            return


def _out_of_reach(
    devices: Sequence[FleetDevice], states: Mapping[str, FleetMachineState]
) -> Iterator[FleetFinding]:
    gone: dict[str, list[FleetDevice]] = {}
    for device in devices:
        if device.state == "gone" and states.get(device.machine) == "unreachable":
            gone.setdefault(device.machine, []).append(device)
    for machine, lost in gone.items():
        prices = [device.usd_per_hour for device in lost if device.usd_per_hour is not None]
        since = age(min(device.gone_s or 0.0 for device in lost))
        yield FleetFinding(
            kind="unreachable",
            machine=machine,
            says=f"its exporter has not answered for {since}; {len(lost)} GPUs that nobody sees",
            query=selector("up", instance=lost[0].instance),
            gpus_lost=float(len(lost)),
            usd_per_hour=sum(prices) if prices else None,
        )


def _faults(device: FleetDevice) -> list[str]:
    found = []
    if device.state == "gone":
        found.append(f"gone for {age(device.gone_s or 0.0)}")
    elif device.state == "down":
        found.append("down: its driver does not answer for it")
    xid = device.xid_last
    # Some Xids are the fault of the program that ran.
    if device.xid_count and xid is not None and xid not in XID_APPLICATION:
        found.append(f"Xid {xid} ({XID_MEANINGS.get(xid, 'see the Xid catalogue')})")
    if device.ecc_uncorrected:
        errors = device.ecc_uncorrected
        found.append(f"{errors} uncorrected memory error{'s' * (errors != 1)}")
    return found


def _broken(device: FleetDevice) -> FleetFinding | None:
    faults = _faults(device)
    if not faults:
        return None
    # A card with errors still computes; what comes out of it is another question.
    lost = 1.0 if device.state != "up" else 0.0
    metric = {"gone": "flatout_device_info", "down": "flatout_device_up"}.get(device.state)
    if metric is None:
        metric = "flatout_device_xid_total" if device.xid_count else "flatout_device_ecc_uncorrected_total"
    return _finding("broken", device, "; ".join(faults), _query(device, metric), lost)


def _idle(device: FleetDevice) -> FleetFinding | None:
    if not is_idle(device):
        return None
    share = device.kernel_running_share or 0.0
    # "No kernel" is what was measured; how long, as far as the window goes.
    since = f"no kernel for {age(device.quiet_s)}" if device.quiet_s else "no kernel"
    query = f"avg_over_time({_query(device, 'flatout_device_kernel_running_ratio')}[{RECENT_S // 60}m])"
    holder = _holder(device)
    if holder:
        return _finding("held idle", device, f"{since}, held by {holder}", query, 1 - share)
    return _finding("idle", device, since, query, 1 - share)


def _holder(device: FleetDevice) -> str:
    """Who holds it all through the last quarter of an hour, in words; empty where nobody does."""
    if device.recently_held is False and device.processes is not None and not device.runs:
        return ""
    if device.runs:
        return f"run {device.runs[0]}"
    if device.pod:
        return f"pod {device.pod}"
    if device.processes:
        return f"{device.processes} process{'es' * (device.processes != 1)}"
    used = device.memory_used_bytes
    if device.processes is None and used is not None and used > HELD_BYTES:
        return f"whoever has {memory_size(used)} of its memory"
    return ""


def _throttled(device: FleetDevice) -> FleetFinding | None:
    lost_s, present_s = device.throttled_lost_s, device.present_s
    reasons = unwanted_reasons(device)
    much = bool(lost_s and present_s and lost_s > max(THROTTLED_S, THROTTLED_SHARE * present_s))
    if device.state != "up" or not (reasons or much):
        return None
    named = {reason: s for reason, s in device.throttled_s.items() if reason in (*UNWANTED_REASONS, *reasons)}
    words = ", ".join(dict.fromkeys((*reasons, *sorted(named, key=lambda one: -named[one])))) or "heat"
    says = f"{'throttled now' if reasons else 'was throttled'}: {words.replace('_', ' ')}"
    if named:
        says += f", for {age(max(named.values()))}"
    if lost_s:
        says += f"; up to {age(lost_s)} of work lost"
    share = device.throttled_losing_share if reasons else lost_s / present_s if lost_s and present_s else 0.0
    return _finding("throttled", device, says, _query(device, "flatout_device_throttled"), share or 0.0)


def _underused(device: FleetDevice) -> FleetFinding | None:
    running, sm = device.kernel_running_share, device.sm_active_share
    tensor = device.tensor_active_share
    if device.state != "up" or not device.recently_seen or running is None or running < MOSTLY_RUNNING:
        return None
    if sm is not None and sm < LOW_SM_SHARE:
        says = f"a kernel runs {percent(running)} of the time, on {percent(sm)} of its SMs"
        return _finding("underused", device, says, _query(device, "flatout_device_sm_active_ratio"), 1 - sm)
    if tensor is not None and sm is not None and tensor < LOW_TENSOR_SHARE:
        says = f"SMs active {percent(sm)}, tensor cores {percent(tensor)}: no half precision?"
        # How much faster it would be cannot be told from here.
        return _finding("underused", device, says, _query(device, "flatout_device_tensor_active_ratio"), 0.0)
    return None


_DCGM_NAMES = {
    "flatout_device_kernel_running_ratio": "DCGM_FI_DEV_GPU_UTIL",
    "flatout_device_sm_active_ratio": "DCGM_FI_PROF_SM_ACTIVE",
    "flatout_device_tensor_active_ratio": "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
    "flatout_device_xid_total": "DCGM_FI_DEV_XID_ERRORS",
    "flatout_device_ecc_uncorrected_total": "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
    "flatout_device_info": "DCGM_FI_DEV_FB_USED",
}


def _query(device: FleetDevice, metric: str) -> str:
    if device.source == "dcgm-exporter":
        return selector(_DCGM_NAMES.get(metric, metric), UUID=device.uuid)
    return selector(metric, instance=device.instance, gpu=device.gpu)


def _finding(kind: FindingKind, device: FleetDevice, says: str, query: str, lost: float) -> FleetFinding:
    price = device.usd_per_hour
    return FleetFinding(
        kind=kind,
        machine=device.machine,
        gpu=device.gpu,
        uuid=device.uuid,
        run=device.runs[0] if device.runs else "",
        says=says,
        query=query,
        gpus_lost=lost,
        usd_per_hour=None if price is None else price * lost,
    )
