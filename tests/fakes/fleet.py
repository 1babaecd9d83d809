"""A made-up fleet under the names that `flatout export` uses: a day of machines that train, as series.

Everything here is generated; nothing was measured.
"""

import dataclasses
from collections.abc import Iterator

from tests.fakes.prometheus import Points, Series

GIB = float(1 << 30)
H100 = "NVIDIA H100 80GB HBM3"
DAY_S = 86400.0
# Older looks are further apart, yet within the five minutes for which Prometheus lets a value stand.
_COARSE_S, _FINE_S, _FINE_FOR_S = 240.0, 30.0, 1200.0


@dataclasses.dataclass(kw_only=True)
class Gpu:
    """One GPU; what is not set is as on a healthy machine that trains."""

    machine: str
    index: int
    uuid: str = ""
    name: str = H100
    running: float = 0.96
    sm: float = 0.72
    tensor: float = 0.38
    processes: float | None = 1.0
    used: float = 61 * GIB
    reasons: tuple[str, ...] = ()
    throttled_for_s: float = 0.0
    clock: float = 1.98e9
    # The last one, and how long ago it was.
    xid: tuple[int, float] | None = None
    ecc: float = 0.0
    up: float = 1.0
    usd: float | None = None
    # Seconds before now: first and last told of.
    since_s: float = DAY_S
    until_s: float = 0.0
    port: int = 19838

    @property
    def labels(self) -> dict[str, str]:
        return {
            "instance": f"{self.machine}:{self.port}",
            "job": "flatout",
            "gpu": str(self.index),
            "uuid": self.id,
        }

    @property
    def id(self) -> str:
        return self.uuid or f"GPU-{self.machine}-{self.index}"


@dataclasses.dataclass(kw_only=True)
class Job:
    """One run; times are seconds before now by a clock that may be wrong."""

    machine: str
    run: str
    name: str = "train.py --config base.yaml"
    uuids: tuple[str, ...] = ()
    state: str = "training"
    started_s: float = 20 * 3600.0
    checkpoint_s: float | None = 600.0
    clock_off_s: float = 0.0
    written_s: float = 0.0
    mfu: float = 0.44
    headroom: float = 1.2
    step_s: float = 0.4
    ranks: tuple[float, ...] = ()


def series_of(
    gpus: list[Gpu], jobs: list[Job], now: float, *, targets: bool = True, history_s: float = DAY_S
) -> Iterator[Series]:
    """Everything that a Prometheus server would have kept."""
    machines: dict[str, list[Gpu]] = {}
    for gpu in gpus:
        yield from _gpu(gpu, now, history_s)
        machines.setdefault(gpu.labels["instance"], []).append(gpu)
    for job in jobs:
        yield from _job(job, now)
    for instance, held in machines.items():
        labels = {"instance": instance, "job": "flatout"}
        since, until = max(gpu.since_s for gpu in held), min(gpu.until_s for gpu in held)
        looks = points(now, min(since, history_s), until, 1.0)
        yield "flatout_node_info", {**labels, "host": instance.partition(":")[0]}, looks
        if targets:
            yield "up", labels, looks


def points(now: float, since_s: float, until_s: float, value: float) -> Points:
    times: list[float] = []
    at = since_s
    while at > until_s:
        times.append(at)
        at -= _COARSE_S if at - _COARSE_S > max(until_s, _FINE_FOR_S) else _FINE_S
    return [(now - back, value) for back in (*times, until_s)]


def _gpu(gpu: Gpu, now: float, history_s: float) -> Iterator[Series]:
    labels = gpu.labels
    since, until = min(gpu.since_s, history_s), gpu.until_s
    told = {"vendor": "nvidia", "name": gpu.name, "memory_bytes": "85520809984", "driver_version": "570.86"}
    long: dict[str, float | None] = {
        "up": gpu.up,
        "kernel_running_ratio": gpu.running if gpu.up else None,
        "processes": gpu.processes if gpu.up else None,
    }
    short: dict[str, float | None] = {
        "memory_used_bytes": gpu.used,
        "memory_total_bytes": 85520809984.0,
        "sm_active_ratio": gpu.sm,
        "tensor_active_ratio": gpu.tensor,
        "power_watts": 130 + 540 * min(gpu.running, 1.0) if gpu.running == gpu.running else 400,
        "power_limit_watts": 700.0,
        "power_limit_default_watts": 700.0,
        "ecc_uncorrected_total": gpu.ecc,
        "usd_per_hour": gpu.usd,
    }
    if gpu.xid:
        short["xid_last"] = float(gpu.xid[0])
        counted = [(at, float(now - at <= gpu.xid[1])) for at, _ in points(now, since, until, 1.0)]
        yield "flatout_device_xid_total", labels, counted
    yield "flatout_device_info", {**labels, **told}, points(now, since, until, 1.0)
    for metric, value in long.items():
        if value is not None:
            yield f"flatout_device_{metric}", labels, points(now, since, until, value)
    for metric, value in short.items() if gpu.up else ():
        if value is not None and until < _FINE_FOR_S:
            yield f"flatout_device_{metric}", labels, points(now, min(since, _FINE_FOR_S), until, value)
    yield from _clocks(gpu, now)


def _clocks(gpu: Gpu, now: float) -> Iterator[Series]:
    if not gpu.reasons:
        return
    since = max(gpu.throttled_for_s, _FINE_FOR_S)
    looks = points(now, since, gpu.until_s, 1.0)
    yield "flatout_device_clock_compute_hertz", gpu.labels, [(at, gpu.clock) for at, _ in looks]
    yield "flatout_device_clock_compute_max_hertz", gpu.labels, [(at, 1.98e9) for at, _ in looks]
    for reason in gpu.reasons:
        labels = {**gpu.labels, "reason": reason}
        yield "flatout_device_throttled", labels, looks
        grown = [(at, at - looks[0][0]) for at, _ in looks]
        yield "flatout_device_throttled_seconds_total", labels, grown


def _job(job: Job, now: float) -> Iterator[Series]:
    labels = {"instance": f"{job.machine}:19838", "job": "flatout", "run": job.run}
    looks = points(now, _FINE_FOR_S, 0.0, 1.0)
    clock = now + job.clock_off_s
    values: dict[str, float | None] = {
        "position_updates": 120000.0,
        "recent_step_seconds": job.step_s,
        "mfu_ratio": job.mfu,
        "headroom_ratio": job.headroom,
        "checkpoint_timestamp_seconds": None if job.checkpoint_s is None else clock - job.checkpoint_s,
        "started_timestamp_seconds": clock - job.started_s,
    }
    yield "flatout_job_info", {**labels, "exported_job": job.name, "user": "ada", "host": job.machine}, looks
    for state in ("starting", "training", "evaluating", "stalled", "ended"):
        here = float(state == job.state)
        yield "flatout_job_state", {**labels, "state": state}, [(at, here) for at, _ in looks]
    for metric, value in values.items():
        if value is not None:
            yield f"flatout_job_{metric}", labels, [(at, value) for at, _ in looks]
    # Written all along, or not any more since so long ago.
    written = [(at, min(at, now - job.written_s) + job.clock_off_s) for at, _ in looks]
    yield "flatout_job_written_timestamp_seconds", labels, written
    for uuid in job.uuids:
        yield "flatout_job_device", {**labels, "uuid": uuid}, looks
    for rank, step in enumerate(job.ranks):
        yield "flatout_job_rank_step_seconds", {**labels, "rank": str(rank)}, [(at, step) for at, _ in looks]


def dcgm_series(
    machine: str, count: int, now: float, *, util: float = 90.0, pod: str = ""
) -> Iterator[Series]:
    """A machine that only dcgm-exporter tells of."""
    for index in range(count):
        labels = {
            "instance": f"{machine}:9400",
            "job": "dcgm",
            "gpu": str(index),
            "UUID": f"GPU-{machine}-{index}",
            "modelName": H100,
            "Hostname": machine,
            **({"exported_pod": pod, "exported_namespace": "research"} if pod else {}),
        }
        values = {
            "DCGM_FI_DEV_GPU_UTIL": util,
            "DCGM_FI_DEV_FB_USED": 40000.0,
            "DCGM_FI_DEV_FB_FREE": 41000.0,
            "DCGM_FI_DEV_POWER_USAGE": 400.0,
            "DCGM_FI_DEV_XID_ERRORS": 0.0,
        }
        for name, value in values.items():
            yield name, labels, points(now, DAY_S, 0.0, value)
    yield "up", {"instance": f"{machine}:9400", "job": "dcgm"}, points(now, DAY_S, 0.0, 1.0)
