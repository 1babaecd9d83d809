"""Jobs under Flatout as metrics."""

from collections.abc import Iterator
from typing import get_args

from prometheus_client.core import Metric

from flatout.monitor.export import job_metrics as of
from flatout.monitor.export.family import Family
from flatout.monitor.export.labels import label
from flatout.monitor.export.look import Look
from flatout.records.live import LIVE_STALE_S, STEP_BUCKETS_S, JobState, LiveJob


def collect_jobs(look: Look) -> Iterator[Metric]:
    """Everything of every job."""
    jobs = _admitted(look)
    yield _info(jobs)
    yield _states(jobs)
    for metric in of.JOB_METRICS:
        family = Family(metric.spec)
        for job in jobs:
            if not metric.current or _goes_on(job, look.now_unix_s):
                family.add((label(job.run),), metric.value(job))
        yield family.metric
    yield _steps(jobs)
    yield _throttled(look, jobs)
    yield from _ranks(look, jobs)
    yield _devices(look, jobs)


def _admitted(look: Look) -> list[LiveJob]:
    """Those that go on before those that ended, new ones before old ones; each run once, by its last word."""
    newest = sorted(look.frame.live_jobs, key=lambda job: -job.written_at_unix_s)
    distinct = list({label(job.run): job for job in reversed(newest)}.values())
    ordered = sorted(distinct, key=lambda job: (job.state == "ended", -job.started_at_unix_s))
    return look.admission.first(ordered, look.limits.jobs, of.STATE.name)


def _goes_on(job: LiveJob, now_unix_s: float) -> bool:
    """What a job that ended, or fell silent, did last is not what it does."""
    return job.state != "ended" and now_unix_s - job.written_at_unix_s <= LIVE_STALE_S


def _info(jobs: list[LiveJob]) -> Metric:
    family = Family(of.INFO)
    for job in jobs:
        facts = {"job": label(job.name), "user": label(job.user), "host": label(job.host)}
        family.describe((label(job.run),), facts)
    return family.metric


def _states(jobs: list[LiveJob]) -> Metric:
    family = Family(of.STATE)
    for job in jobs:
        for state in get_args(JobState):
            family.add((label(job.run), state), float(job.state == state))
    return family.metric


def _steps(jobs: list[LiveJob]) -> Metric:
    family = Family(of.STEP_SECONDS)
    for job in jobs:
        steps = job.totals.steps
        # Another version's file may count in other buckets.
        if len(steps.counts) == len(STEP_BUCKETS_S) + 1:
            family.distribute((label(job.run),), STEP_BUCKETS_S, steps.counts, steps.sum_s)
    return family.metric


def _throttled(look: Look, jobs: list[LiveJob]) -> Metric:
    family = Family(of.THROTTLED_SECONDS)
    for job in jobs:
        reasons = sorted(job.totals.throttled_s.items())
        for reason, seconds in look.admission.first(reasons, look.limits.reasons, family.spec.name):
            family.add((label(job.run), label(reason)), seconds)
    return family.metric


def _ranks(look: Look, jobs: list[LiveJob]) -> Iterator[Metric]:
    pace, position = Family(of.RANK_STEP), Family(of.RANK_POSITION)
    for job in jobs:
        ranks = look.admission.unique(job.ranks, lambda rank: rank.rank, pace.spec.name)
        for rank in look.admission.first(ranks, look.limits.ranks, pace.spec.name):
            labels = (label(job.run), str(rank.rank))
            pace.add(labels, rank.step_s if _goes_on(job, look.now_unix_s) else None)
            position.add(labels, rank.updates)
    yield pace.metric
    yield position.metric


def _devices(look: Look, jobs: list[LiveJob]) -> Metric:
    family = Family(of.DEVICE)
    for job in jobs:
        uuids = dict.fromkeys(map(label, job.devices)) if job.state != "ended" else {}
        for uuid in look.admission.first(uuids, look.limits.devices_of_job, family.spec.name):
            family.add((label(job.run), uuid), 1.0)
    return family.metric
