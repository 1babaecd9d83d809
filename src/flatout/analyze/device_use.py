"""What the device's own counters said during the steady steps of a rank."""

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from flatout.analyze.steps import RankSteps
from flatout.records.device import Device, DeviceSample
from flatout.records.profile import DeviceUse

# Of the samples: a clock that is held down more seldom costs nothing to speak of.
_OFTEN = 0.1
_SHARES = ("kernel_running_share", "sm_active_share", "tensor_active_share", "memory_bandwidth_share")


def device_use(
    rank: RankSteps,
    chosen: Sequence[dict[str, Any]],
    samples: Sequence[DeviceSample],
    devices: Sequence[Device] = (),
) -> DeviceUse:
    """Means over the samples of this rank's GPU, taken between its first and its last chosen step."""
    uuid, zero = rank.about.get("device_uuid"), rank.about.get("unix_at_zero_s")
    if not uuid or zero is None or not chosen:
        return DeviceUse(samples=0)
    since, until = zero + chosen[0]["started_ns"] / 1e9, zero + chosen[-1]["ended_ns"] / 1e9
    own = [
        sample
        for sample in samples
        if sample.state == "up"
        and (sample.uuid or "").endswith(uuid)
        and since <= sample.taken_at_unix_s <= until
    ]
    if not own:
        return DeviceUse(samples=0)
    unknown = dict(own[-1].unknown)
    means = {name: _mean(own, name) for name in (*_SHARES, "clock_compute_hz", "power_draw_mw")}
    hottest = [sample.temperature_c for sample in own if sample.temperature_c is not None]
    reasons = [sample.throttle_reasons for sample in own if sample.throttle_reasons is not None]
    theirs = [device for device in devices if (device.uuid or "").endswith(uuid)]
    clock, power = means["clock_compute_hz"], means["power_draw_mw"]
    return DeviceUse(
        samples=len(own),
        **{name: means[name] for name in _SHARES},
        clock_compute_hz=round(clock) if clock is not None else None,
        power_draw_mw=round(power) if power is not None else None,
        temperature_max_c=max(hottest, default=None),
        throttle_reasons=_often(reasons) if reasons else None,
        # A link that rests runs slower: what it reached counts.
        pcie_generation=_most(own, "pcie_generation"),
        pcie_width=_most(own, "pcie_width"),
        pcie_generation_max=_most(theirs, "pcie_generation_max"),
        pcie_width_max=_most(theirs, "pcie_width_max"),
        source=own[-1].activity_source,
        unknown={name: why for name, why in unknown.items() if name in DeviceUse.__dataclass_fields__},
    )


def _often(given: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Reasons that are no chance; a rest is none."""
    counts = Counter(reason for reasons in given for reason in set(reasons))
    return tuple(
        sorted(
            reason for reason, count in counts.items() if reason != "idle" and count >= _OFTEN * len(given)
        )
    )


def _most(values: Sequence[Any], name: str) -> int | None:
    return max((value for one in values if (value := getattr(one, name)) is not None), default=None)


def _mean(samples: Sequence[DeviceSample], name: str) -> float | None:
    values = [value for sample in samples if (value := getattr(sample, name)) is not None]
    return statistics.fmean(values) if values else None
