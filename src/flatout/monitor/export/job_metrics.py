"""What is told of each job under Flatout: a table of names, meanings and where the value comes from."""

import dataclasses
from collections.abc import Callable

from flatout.monitor.export.family import PREFIX, Kind, MetricSpec
from flatout.records.live import LiveJob

JOB_LABELS = ("run",)
_NAME = PREFIX + "job_"


@dataclasses.dataclass(frozen=True)
class JobMetric:
    """A metric with one sample a job. One that is `current` is told only while the job goes on."""

    spec: MetricSpec
    value: Callable[[LiveJob], float | None]
    current: bool = False


def _metric(
    kind: Kind, name: str, text: str, value: Callable[[LiveJob], float | None], *, current: bool = False
) -> JobMetric:
    return JobMetric(MetricSpec(_NAME + name, kind, text, JOB_LABELS), value, current)


def _now(name: str, text: str, value: Callable[[LiveJob], float | None]) -> JobMetric:
    return _metric("gauge", name, text, value, current=True)


def _kept(name: str, text: str, value: Callable[[LiveJob], float | None]) -> JobMetric:
    return _metric("gauge", name, text, value)


def _counter(name: str, text: str, value: Callable[[LiveJob], float | None]) -> JobMetric:
    return _metric("counter", name, text, value)


def _updates_made(job: LiveJob) -> int:
    """Its place in the training is no counter: a job that is started again comes back to an earlier one."""
    return sum(job.totals.steps.counts)


def _energy_j(job: LiveJob) -> float | None:
    return job.totals.energy_j if job.devices and job.totals.energy_source != "none" else None


def _if_held(job: LiveJob, value: float) -> float | None:
    """A job without a GPU holds none: nothing is known of how it uses them."""
    return value if job.devices else None


def _spec(kind: Kind, name: str, text: str, *labels: str, facts: tuple[str, ...] = ()) -> MetricSpec:
    return MetricSpec(_NAME + name, kind, text, (*JOB_LABELS, *labels), facts)


INFO = _spec(
    "info",
    "info",
    "What the job is; always 1. Prometheus keeps `job` for itself: there it is exported_job.",
    facts=("job", "user", "host"),
)
STATE = _spec("gauge", "state", "1 for the state that the job is in, 0 for the others.", "state")
STEP_SECONDS = _spec("histogram", "step_seconds", "All steps, by how long they took.")
THROTTLED_SECONDS = _spec(
    "counter", "throttled_seconds_total", "Time for which clocks of its GPUs were held down.", "reason"
)
RANK_STEP = _spec("gauge", "rank_step_seconds", "Median of the last steps of a rank.", "rank")
RANK_POSITION = _spec(
    "gauge", "rank_position_updates", "Place of a rank in the training, in updates.", "rank"
)
DEVICE = _spec("gauge", "device", "1 for each GPU that the job trains on.", "uuid")

JOB_METRICS: tuple[JobMetric, ...] = (
    _counter(
        "updates_total",
        "Optimizer updates that it made in all of its lives, but for the first after each start.",
        _updates_made,
    ),
    _kept(
        "position_updates",
        "Place in the training, in updates: one that comes back to a checkpoint goes on from there.",
        lambda j: j.updates,
    ),
    _kept("updates_planned", "Updates that it will make in all.", lambda j: j.updates_planned),
    _counter("samples_total", "Samples it has trained on.", lambda j: j.totals.samples),
    _counter("tokens_total", "Tokens it has trained on.", lambda j: j.totals.tokens or None),
    _now("samples_per_second", "Pace of the last steps.", lambda j: j.samples_per_s),
    _now("mfu_ratio", "Model FLOPs a second, of the device's peak.", lambda j: j.mfu),
    _now("headroom_ratio", "How many times faster it could be, by its last profile.", lambda j: j.headroom),
    _now("loss", "The last loss.", lambda j: j.loss),
    _now("loss_scale", "What the loss is multiplied by, where precision is mixed.", lambda j: j.loss_scale),
    _counter(
        "data_wait_seconds_total", "Time in which steps waited for data.", lambda j: j.totals.data_wait_s
    ),
    _now(
        "data_wait_ratio",
        "Share of the last steps in which they waited for data.",
        lambda j: j.data_wait_share,
    ),
    _counter("evaluation_seconds_total", "Time in evaluations.", lambda j: j.totals.evaluation_s),
    _counter("energy_joules_total", "Energy of its GPUs.", _energy_j),
    _counter(
        "device_seconds_total", "Time for which GPUs were held.", lambda j: _if_held(j, j.totals.device_s)
    ),
    _counter(
        "device_idle_seconds_total",
        "Time for which GPUs were held and no kernel ran on them.",
        lambda j: _if_held(j, j.totals.device_idle_s),
    ),
    _kept("checkpoint_timestamp_seconds", "When it saved last.", lambda j: j.checkpoint_at_unix_s),
    _counter(
        "losses_not_finite_total", "Losses that were NaN or infinite.", lambda j: j.totals.losses_not_finite
    ),
    _counter("skipped_updates_total", "Updates that were left out.", lambda j: j.totals.skipped_updates),
    _counter("out_of_memory_total", "Times that it ran out of memory.", lambda j: j.totals.out_of_memory),
    _counter("hangs_total", "Times that it stood still.", lambda j: j.totals.hangs),
    _counter("slowdowns_total", "Times that steps became slower.", lambda j: j.totals.slowdowns),
    _kept("lives", "Times that it was started.", lambda j: j.life),
    _kept("memory_peak_bytes", "Most memory that it held on one GPU.", lambda j: j.memory_peak_bytes),
    _kept("best_step_seconds", "The fastest pace that it has had.", lambda j: j.best_step_s),
    _now("recent_step_seconds", "Median of the last steps.", lambda j: j.step_s),
    _now("usd_per_hour", "What its GPUs cost an hour.", lambda j: j.usd_per_hour),
    _kept("started_timestamp_seconds", "When it started.", lambda j: j.started_at_unix_s),
    _kept("written_timestamp_seconds", "When it was last heard of.", lambda j: j.written_at_unix_s),
)
