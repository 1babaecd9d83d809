"""Frames as an exporter meets them: some GPUs, some jobs."""

import time
from typing import Any

from flatout.records.device import Device, DeviceSample
from flatout.records.live import STEP_BUCKETS_S, LiveJob, LiveRank, LiveTotals, StepTimes
from flatout.records.watching import Frame, HostSample
from tests.fakes.machines import h200, h200_sample

NOW = 1_760_000_000.0


def frame_of(*pairs: tuple[Device, DeviceSample], **changes: Any) -> Frame:
    facts: dict[str, Any] = {
        "host": "box",
        "taken_at_unix_s": NOW,
        "devices": tuple(device for device, _ in pairs),
        "samples": tuple(sample for _, sample in pairs),
        "machine": HostSample(cpu_share=0.25, memory_used_bytes=1 << 30, memory_total_bytes=4 << 30),
    }
    return Frame(**{**facts, **changes})


def gpu(index: int = 0, **changes: Any) -> tuple[Device, DeviceSample]:
    uuid = changes.pop("uuid", f"GPU-{index}")
    return h200(index=index, uuid=uuid), h200_sample(
        **{"index": index, "uuid": uuid, "taken_at_unix_s": NOW, **changes}
    )


def job(run: str = "r1", **changes: Any) -> LiveJob:
    counts = [0] * (len(STEP_BUCKETS_S) + 1)
    counts[5], counts[-1] = 40, 2
    totals = LiveTotals(
        steps=StepTimes(counts=tuple(counts), sum_s=702.0),
        samples=1280,
        data_wait_s=3.5,
        throttled_s={"thermal_software": 4.0},
        energy_j=900.0,
        energy_source="counter",
        device_s=60.0,
        device_idle_s=12.0,
    )
    facts: dict[str, Any] = {
        "run": run,
        "name": "train.py --lr 3e-4",
        "run_folder": "/jobs/.flatout/runs/r1",
        "host": "box",
        "pid": 4711,
        "user": "ada",
        "state": "training",
        "started_at_unix_s": NOW - 100,
        "written_at_unix_s": NOW - 1,
        "updates": 42,
        "updates_planned": 100,
        "step_s": 0.04,
        "best_step_s": 0.03,
        "samples_per_s": 800.0,
        "mfu": 0.31,
        "headroom": 1.7,
        "loss": 2.5,
        "data_wait_share": 0.1,
        "checkpoint_at_unix_s": NOW - 30,
        "usd_per_hour": 5.0,
        "ranks": (LiveRank(rank=0, pid=4712, updates=42, step_s=0.04),),
        "devices": ("GPU-0",),
        "totals": totals,
    }
    return LiveJob(**{**facts, **changes})


def fresh(frame: Frame) -> Frame:
    """The same frame, taken now."""
    import dataclasses

    now = time.time()
    samples = tuple(dataclasses.replace(sample, taken_at_unix_s=now) for sample in frame.samples)
    jobs = tuple(dataclasses.replace(one, written_at_unix_s=now) for one in frame.live_jobs)
    return dataclasses.replace(frame, taken_at_unix_s=now, samples=samples, live_jobs=jobs)
