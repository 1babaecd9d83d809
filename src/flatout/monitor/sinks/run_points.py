"""What is known of a job under `flatout run`, as points: its losses, its pace, the devices that it trains on.

Names begin with `flatout/` and end with their unit, as those of `flatout export` do.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from flatout.analyze.steps import loss_of
from flatout.records.device import Device, DeviceSample
from flatout.records.live import LiveJob
from flatout.records.points import Point

# Losses that are sent of one look; of more, every so many.
_STEPS_AT_MOST = 200


def loss_points(
    steps: Sequence[dict[str, Any]], *, after_update: int, loss_scale: float | None, unix_at_zero_s: float
) -> list[Point]:
    """The losses of these steps, where they were seen: as they are without a GradScaler's factor."""
    found = []
    for step in steps:
        loss = loss_of(step)
        if loss is not None:
            at_unix_s = unix_at_zero_s + step["ended_ns"] / 1e9
            value = loss / (loss_scale or 1.0)
            found.append(Point(after_update + step["update"], at_unix_s, {"flatout/loss": value}))
    return found[:: math.ceil(len(found) / _STEPS_AT_MOST) or 1]


def job_point(job: LiveJob, epoch_s: float | None, devices: Iterable[tuple[Device, DeviceSample]]) -> Point:
    """One row: how the job does, and beside it what its devices do. What is unknown is left out."""
    values = {
        "flatout/step_seconds": job.step_s,
        "flatout/samples_per_second": job.samples_per_s,
        "flatout/tokens_per_second": job.tokens_per_s,
        "flatout/mfu_ratio": job.mfu,
        "flatout/data_wait_ratio": job.data_wait_share,
        "flatout/loss_scale": job.loss_scale,
        "flatout/epoch_seconds": epoch_s,
        "flatout/memory_peak_bytes": job.memory_peak_bytes,
    }
    for device, sample in devices:
        values |= _of_device(device, sample)
    known = {name: float(value) for name, value in values.items() if value is not None}
    return Point(job.updates, job.written_at_unix_s, known)


def _of_device(device: Device, sample: DeviceSample) -> dict[str, float | None]:
    if sample.state != "up":
        return {}
    name = f"flatout/gpu{device.index}"
    return {
        f"{name}/power_watts": sample.power_draw_mw / 1000 if sample.power_draw_mw is not None else None,
        f"{name}/temperature_celsius": sample.temperature_c,
        f"{name}/memory_used_bytes": sample.memory_used_bytes,
        f"{name}/kernel_running_ratio": sample.kernel_running_share,
        f"{name}/sm_active_ratio": sample.sm_active_share,
        f"{name}/tensor_active_ratio": sample.tensor_active_share,
        f"{name}/clock_compute_hertz": sample.clock_compute_hz,
    }
