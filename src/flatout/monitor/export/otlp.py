"""The same metrics pushed to an OpenTelemetry collector (OTLP over HTTP)."""

import logging
import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from prometheus_client.core import Metric

from flatout.records.errors import CallerMistake, EnvironmentProblem, MissingExtra
from flatout.records.version import __version__

if TYPE_CHECKING:
    from prometheus_client.samples import Sample

# Some count since a machine or a job was started, some since we were: 0 says that it is not known.
_UNKNOWN_START = 0


class OtlpPush:
    """Sends what a scrape would have got."""

    def __init__(self, url: str, host: str, token: str = "") -> None:
        if not url.startswith(("http://", "https://")):
            raise CallerMistake(
                f"{url!r} is no address of a collector",
                expected="http:// or https://, with OTLP's path for metrics",
                remedy="--otlp http://127.0.0.1:4318/v1/metrics",
            )
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.sdk.resources import Resource
        except ImportError as error:
            raise MissingExtra(
                "opentelemetry-exporter-otlp-proto-http", extra="otel", wanted_for="flatout export --otlp"
            ) from error
        headers = {"Authorization": f"Bearer {token}"} if token else None
        self._exporter = OTLPMetricExporter(endpoint=url, headers=headers, timeout=5)
        self._resource = Resource(
            {"service.name": "flatout", "service.version": __version__, "host.name": host}
        )
        self._url = url
        self._said = _LastWords()
        self._log = logging.getLogger("opentelemetry")
        self._propagated, self._log.propagate = self._log.propagate, False
        self._log.addHandler(self._said)

    def push(self, metrics: Sequence[Metric]) -> None:
        """One export of everything."""
        from opentelemetry.sdk.metrics.export import MetricExportResult

        data = as_otlp(metrics, self._resource, time.time_ns())
        self._said.text = ""
        if self._exporter.export(data) is not MetricExportResult.SUCCESS:
            why = f": {self._said.text}" if self._said.text else ""
            raise EnvironmentProblem(
                f"the collector at {self._url} did not take the metrics{why}",
                expected="an OpenTelemetry collector that takes OTLP over HTTP",
                remedy="look at the collector's log; its path for metrics is usually /v1/metrics",
            )

    def close(self) -> None:
        """Give the connection back, and the SDK its voice."""
        self._exporter.shutdown()
        self._log.removeHandler(self._said)
        self._log.propagate = self._propagated


class _LastWords(logging.Handler):
    """What the SDK says of a failure becomes part of our error, instead of lines beside it."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the first line of one export: those that follow say that it was tried again."""
        self.text = self.text or record.getMessage()


def as_otlp(metrics: Sequence[Metric], resource: Any, now_ns: int) -> Any:
    """Families as OpenTelemetry's own records; names stay as they are in Prometheus."""
    from opentelemetry.sdk.metrics import export as otel
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    scope = InstrumentationScope("flatout", __version__)
    found = [_metric(metric, now_ns) for metric in metrics if metric.samples]
    scoped = otel.ScopeMetrics(scope=scope, metrics=found, schema_url="")
    return otel.MetricsData(
        resource_metrics=[otel.ResourceMetrics(resource=resource, scope_metrics=[scoped], schema_url="")]
    )


def _metric(metric: Metric, now_ns: int) -> Any:
    from opentelemetry.sdk.metrics import export as otel

    name = metric.samples[0].name if metric.type != "histogram" else metric.name
    data: Any
    if metric.type == "histogram":
        data = otel.Histogram(
            data_points=_histograms(metric.samples, now_ns),
            aggregation_temporality=otel.AggregationTemporality.CUMULATIVE,
        )
    elif metric.type == "counter":
        data = otel.Sum(
            data_points=_points(metric.samples, now_ns),
            aggregation_temporality=otel.AggregationTemporality.CUMULATIVE,
            is_monotonic=True,
        )
    else:
        data = otel.Gauge(data_points=_points(metric.samples, now_ns))
    return otel.Metric(name=name, description=metric.documentation, unit="", data=data)


def _points(samples: Sequence["Sample"], now_ns: int) -> list[Any]:
    from opentelemetry.sdk.metrics import export as otel

    return [
        otel.NumberDataPoint(
            attributes=dict(sample.labels),
            start_time_unix_nano=_UNKNOWN_START,
            time_unix_nano=now_ns,
            value=float(sample.value),
        )
        for sample in samples
    ]


def _histograms(samples: Sequence["Sample"], now_ns: int) -> list[Any]:
    from opentelemetry.sdk.metrics import export as otel

    by_labels: dict[tuple[tuple[str, str], ...], dict[float, float]] = {}
    sums: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in samples:
        labels = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "le"))
        if sample.name.endswith("_bucket"):
            by_labels.setdefault(labels, {})[float(sample.labels["le"])] = sample.value
        elif sample.name.endswith("_sum"):
            sums[labels] = sample.value
    found = []
    unknown: Any = None  # left out of the message; its type does not say that it may be
    for labels, so_far in by_labels.items():
        ends = sorted(so_far)
        below = [0.0, *(so_far[end] for end in ends[:-1])]
        counts = [round(so_far[end] - before) for end, before in zip(ends, below, strict=True)]
        found.append(
            otel.HistogramDataPoint(
                attributes=dict(labels),
                start_time_unix_nano=_UNKNOWN_START,
                time_unix_nano=now_ns,
                count=sum(counts),
                sum=sums.get(labels, 0.0),
                bucket_counts=counts,
                explicit_bounds=[end for end in ends if math.isfinite(end)],
                min=unknown,
                max=unknown,
            )
        )
    return found
