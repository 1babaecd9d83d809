"""What a job costs: its GPU hours in dollars, by step, sample, token and epoch, and those not used."""

from typing import get_args

from flatout.records.energy import Cost, Energy, HourPrice, IdleCause, JobTime
from flatout.records.live import LiveJob

_HOUR_S = 3600.0
_NO_STEP = "no step was made"


def cost_of(job: JobTime, price: HourPrice) -> Cost:
    """The whole account. Each GPU is paid for from the job's start to its end, whatever it did."""
    gpu_hours = job.gpus * job.held_s / _HOUR_S
    usd = _times(price.usd_per_gpu_hour, gpu_hours)
    unused = {cause: seconds * job.gpus / _HOUR_S for cause, seconds in unused_s(job).items()}
    joules = job.energy.joules
    return Cost(
        gpus=job.gpus,
        gpu_hours=gpu_hours,
        price=price,
        unused_gpu_hours=unused,
        kernels_absent_gpu_hours=_times(job.kernels_absent_device_s, 1 / _HOUR_S),
        usd=usd,
        usd_unused=_times(price.usd_per_gpu_hour, sum(unused.values())) if unused else None,
        usd_per_step=_over(usd, job.steps),
        usd_per_thousand_samples=_over(usd, job.samples, 1e3),
        usd_per_million_tokens=_over(usd, job.tokens, 1e6),
        usd_per_epoch=_times(_over(usd, job.steps), steps_per_epoch(job)),
        usd_to_end=_usd_to_end(job, price),
        joules_per_step=_over(joules, job.steps),
        samples_per_joule=_over(float(job.samples), joules) if job.samples else None,
        energy=job.energy,
        unknown=_reasons(job, price),
    )


def unused_s(job: JobTime) -> dict[IdleCause, float]:
    """Wall seconds that did not go into steps, by cause; what no cause explains is "unattributed"."""
    known: dict[IdleCause, float | None] = {
        "before_first_step": job.before_first_step_s,
        "loader_wait": job.loader_wait_s,
        "evaluation": job.evaluation_s,
        "checkpoint": job.checkpoint_s,
        "stalled": job.stalled_s,
        "after_last_step": job.after_last_step_s,
    }
    found = {cause: seconds for cause, seconds in known.items() if seconds is not None and seconds > 0}
    if job.steps_s is not None:
        # Waiting for data happens inside of steps.
        outside_s = sum(seconds for cause, seconds in found.items() if cause != "loader_wait")
        rest_s = job.held_s - job.steps_s - outside_s
        if rest_s > 0.001 * job.held_s:
            found["unattributed"] = rest_s
    return {cause: found[cause] for cause in get_args(IdleCause) if cause in found}


def steps_per_epoch(job: JobTime) -> float | None:
    """How many steps pass over the data once, as was given or from its length and what a step takes of it."""
    if job.steps_per_epoch is not None:
        return job.steps_per_epoch
    if job.samples_per_epoch is None or not job.samples or job.steps <= 0:
        return None
    return job.samples_per_epoch / (job.samples / job.steps)


def job_time_of(live: LiveJob) -> JobTime:
    """What a job's live file tells of its time."""
    totals = live.totals
    gpus = len(live.devices)
    drawn = Energy(joules=totals.energy_j, source=totals.energy_source, covered_s=totals.device_s)
    return JobTime(
        gpus=gpus,
        held_s=totals.device_s / gpus if gpus else live.written_at_unix_s - live.started_at_unix_s,
        steps=sum(totals.steps.counts),
        samples=totals.samples or None,
        tokens=totals.tokens or None,
        steps_left=_left(live),
        step_s=live.step_s,
        before_first_step_s=totals.before_first_step_s,
        loader_wait_s=totals.data_wait_s,
        evaluation_s=totals.evaluation_s,
        checkpoint_s=totals.checkpoint_s,
        stalled_s=totals.stalled_s,
        after_last_step_s=totals.after_last_step_s,
        steps_s=totals.steps.sum_s,
        kernels_absent_device_s=totals.device_idle_s if totals.device_s else None,
        energy=drawn if totals.energy_j > 0 else Energy(),
    )


def _left(live: LiveJob) -> int | None:
    return max(live.updates_planned - live.updates, 0) if live.updates_planned is not None else None


def _usd_to_end(job: JobTime, price: HourPrice) -> float | None:
    """At the pace of the last steps where it is known, with the share of time that passes between steps."""
    if job.steps_left is None or price.usd_per_gpu_hour is None or job.steps <= 0:
        return None
    around = job.held_s - (job.before_first_step_s or 0.0) - (job.after_last_step_s or 0.0)
    each_s = around / job.steps
    if job.step_s is not None and job.steps_s:
        each_s = job.step_s * max(around / job.steps_s, 1.0)
    return price.usd_per_gpu_hour * job.gpus * job.steps_left * each_s / _HOUR_S


def _reasons(job: JobTime, price: HourPrice) -> dict[str, str]:
    """Why a figure is missing, where it is more than the price that is."""
    reasons: dict[str, str] = {}
    if job.steps <= 0:
        reasons |= dict.fromkeys(("usd_per_step", "joules_per_step", "usd_to_end"), _NO_STEP)
    if not job.samples:
        reasons |= dict.fromkeys(("usd_per_thousand_samples", "samples_per_joule"), "no samples were counted")
    if not job.tokens:
        reasons["usd_per_million_tokens"] = "no tokens were counted"
    if steps_per_epoch(job) is None:
        reasons["usd_per_epoch"] = "how many samples an epoch has is not known"
    if job.steps_left is None:
        reasons["usd_to_end"] = "how many steps are left is not known"
    if job.kernels_absent_device_s is None:
        reasons["kernels_absent_gpu_hours"] = job.unknown.get("kernels_absent_device_s", "not measured")
    if job.energy.joules is None:
        why = job.energy.unknown["joules"]
        reasons |= {"joules_per_step": why} if job.steps > 0 else {}
        reasons["samples_per_joule"] = why
    if price.usd_per_gpu_hour is None:
        dollars = ("usd", "usd_unused", "usd_per_step", "usd_per_thousand_samples", "usd_per_million_tokens")
        reasons |= dict.fromkeys((*dollars, "usd_per_epoch", "usd_to_end"), price.unknown["usd_per_gpu_hour"])
    elif not unused_s(job):
        reasons["usd_unused"] = "where the time between steps went is not known"
    return reasons


def _times(value: float | None, factor: float | None) -> float | None:
    return value * factor if value is not None and factor is not None else None


def _over(value: float | None, count: float | None, unit: float = 1.0) -> float | None:
    return value / count * unit if value is not None and count else None
