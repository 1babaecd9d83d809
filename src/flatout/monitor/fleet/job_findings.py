"""What is wrong with jobs: they stand still, save nothing, wait for one rank, or could be far faster."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from flatout.monitor.fleet.device_findings import unwanted_reasons
from flatout.monitor.fleet.policy import CHECKPOINT_AGE_S, LOW_MFU, SLOW_RANK, WORTH_TUNING
from flatout.monitor.fleet.selecting import selector
from flatout.records.fleet import FindingKind, FleetDevice, FleetFinding, FleetJob
from flatout.records.words import age, duration, percent

_HOUR_S = 3600.0
_WORKING = ("training", "evaluating", "stalled")


def job_findings(
    jobs: Iterable[FleetJob], devices: Sequence[FleetDevice], over_s: float
) -> Iterator[FleetFinding]:
    """Everything that is wrong with each job; one that stands still is not also slow."""
    by_run: dict[str, list[FleetDevice]] = {}
    for device in devices:
        for run in device.runs:
            by_run.setdefault(run, []).append(device)
    prices = {run: _price(held) for run, held in by_run.items()}
    for job in jobs:
        if job.silent_s is not None and job.silent_s > over_s:
            continue  # it died long ago, and only its file is left
        stalled = _stalled(job, by_run.get(job.run, ()), prices)
        if stalled is not None:
            yield stalled
        else:
            yield from filter(
                None, (_slow_rank(job, by_run.get(job.run, ()), prices), _underused(job, prices))
            )
        checkpoint = _checkpoint(job, prices)
        if checkpoint is not None:
            yield checkpoint


def _price(devices: Sequence[FleetDevice]) -> float | None:
    known = [device.usd_per_hour for device in devices if device.usd_per_hour is not None]
    return sum(known) if len(known) == len(devices) else None


def _stalled(
    job: FleetJob, devices: Sequence[FleetDevice], prices: Mapping[str, float | None]
) -> FleetFinding | None:
    share = 1.0
    if job.silent_s is not None:
        held = [device for device in devices if device.processes != 0]
        share = len(held) / len(devices) if devices else 1.0
        how = "and it holds its GPUs" if share else "and its GPUs are free: it ended without a word"
        says = f"nobody has written of it for {age(job.silent_s)}, {how}"
        query = selector("flatout_job_written_timestamp_seconds", run=job.run)
    elif job.state == "stalled":
        says = "no step for far longer than usual"
        query = selector("flatout_job_state", run=job.run, state="stalled")
    else:
        return None
    return _finding("stalled", job, says, query, share, prices)


def _slow_rank(
    job: FleetJob, devices: Sequence[FleetDevice], prices: Mapping[str, float | None]
) -> FleetFinding | None:
    if not job.ranks or job.ranks[0].times_the_others < SLOW_RANK:
        return None
    slow = job.ranks[0]
    says = (
        f"rank {slow.rank} takes {duration(slow.step_s)} a step, {slow.times_the_others:.2f}x the others; "
        "all wait for it"
    )
    limited = [f"GPU {device.gpu} ({device.machine})" for device in devices if unwanted_reasons(device)]
    if limited:
        says += f". Throttled: {', '.join(limited[:3])}"
    query = f"topk(3, {selector('flatout_job_rank_step_seconds', run=job.run)})"
    return _finding("slow rank", job, says, query, 1 - 1 / slow.times_the_others, prices, slow.machine)


def _underused(job: FleetJob, prices: Mapping[str, float | None]) -> FleetFinding | None:
    if job.mfu is None or job.headroom is None or job.mfu >= LOW_MFU or job.headroom < WORTH_TUNING:
        return None
    says = f"MFU {percent(job.mfu)}, and its last profile says up to {job.headroom:.1f}x as fast"
    query = selector("flatout_job_mfu_ratio", run=job.run)
    return _finding("underused", job, says, query, 1 - 1 / job.headroom, prices)


def _checkpoint(job: FleetJob, prices: Mapping[str, float | None]) -> FleetFinding | None:
    if job.state not in _WORKING or job.age_s is None or job.age_s < CHECKPOINT_AGE_S:
        return None
    at_risk_s = job.checkpoint_age_s if job.checkpoint_age_s is not None else job.age_s
    if at_risk_s < CHECKPOINT_AGE_S:
        return None
    if job.checkpoint_age_s is None:
        says = f"runs for {age(job.age_s)}, and no checkpoint of it is known"
        query = selector("flatout_job_started_timestamp_seconds", run=job.run)
    else:
        says = f"its last checkpoint is {age(at_risk_s)} old"
        query = f"time() - {selector('flatout_job_checkpoint_timestamp_seconds', run=job.run)}"
    hours, price = at_risk_s / _HOUR_S, _price_of(job, prices)
    return FleetFinding(
        kind="no checkpoint",
        machine=job.machine,
        run=job.run,
        says=says,
        query=query,
        gpu_hours_at_risk=hours * job.gpus,
        usd_at_risk=None if price is None else price * hours,
    )


def _price_of(job: FleetJob, prices: Mapping[str, float | None]) -> float | None:
    """All its GPUs for an hour."""
    return job.usd_per_hour if job.usd_per_hour is not None else prices.get(job.run)


def _finding(
    kind: FindingKind,
    job: FleetJob,
    says: str,
    query: str,
    share: float,
    prices: Mapping[str, float | None],
    machine: str = "",
) -> FleetFinding:
    price = _price_of(job, prices)
    return FleetFinding(
        kind=kind,
        machine=machine or job.machine,
        run=job.run,
        says=says,
        query=query,
        gpus_lost=share * job.gpus,
        usd_per_hour=None if price is None else price * share,
    )
