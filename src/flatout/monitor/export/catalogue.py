"""Every metric of ours, in the order in which they are served: what the documentation lists."""

from collections.abc import Callable, Iterator

from prometheus_client.core import Metric

from flatout.monitor.export import device_metrics, job_metrics
from flatout.monitor.export.devices import collect_devices
from flatout.monitor.export.family import MetricSpec
from flatout.monitor.export.jobs import collect_jobs
from flatout.monitor.export.look import Look
from flatout.monitor.export.node import NODE_SPECS, collect_node
from flatout.monitor.export.own import OWN_SPECS

Collector = Callable[[Look], Iterator[Metric]]

COLLECTORS: dict[str, Collector] = {"devices": collect_devices, "jobs": collect_jobs, "node": collect_node}

DEVICE_SPECS: tuple[MetricSpec, ...] = (
    device_metrics.INFO,
    device_metrics.UP,
    device_metrics.AGE,
    *(metric.spec for metric in device_metrics.DEVICE_METRICS),
    device_metrics.ENERGY,
    device_metrics.THROTTLED,
    device_metrics.THROTTLED_SECONDS,
    device_metrics.PRICE,
)
JOB_SPECS: tuple[MetricSpec, ...] = (
    job_metrics.INFO,
    job_metrics.STATE,
    *(metric.spec for metric in job_metrics.JOB_METRICS),
    job_metrics.STEP_SECONDS,
    job_metrics.THROTTLED_SECONDS,
    job_metrics.RANK_STEP,
    job_metrics.RANK_POSITION,
    job_metrics.DEVICE,
)
SPECS: dict[str, tuple[MetricSpec, ...]] = {
    "GPUs": DEVICE_SPECS,
    "jobs": JOB_SPECS,
    "the machine": NODE_SPECS,
    "the exporter": OWN_SPECS,
}
