"""One metric: its name, kind, labels and what it says; and what prometheus_client makes of it."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Literal

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
    UnknownMetricFamily,
)

PREFIX = "flatout_"
# `unknown` is for counters of others whose names do not end as counters' must.
Kind = Literal["gauge", "counter", "info", "histogram", "unknown"]

_OF_KIND = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily, "unknown": UnknownMetricFamily}


@dataclasses.dataclass(frozen=True)
class MetricSpec:
    """A metric as it is documented; `name` is what one queries."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    # Of an info metric: the labels beside those that identify what it is about.
    facts: tuple[str, ...] = ()


class Family:
    """The samples of one metric. What is unknown is not added: an absent sample, never 0."""

    def __init__(self, spec: MetricSpec) -> None:
        self.spec = spec
        self._own: GaugeMetricFamily | CounterMetricFamily | UnknownMetricFamily | None = None
        self._info: InfoMetricFamily | None = None
        self._histogram: HistogramMetricFamily | None = None
        if spec.kind == "info":
            self._info = InfoMetricFamily(spec.name.removesuffix("_info"), spec.help, labels=spec.labels)
        elif spec.kind == "histogram":
            self._histogram = HistogramMetricFamily(spec.name, spec.help, labels=spec.labels)
        else:
            self._own = _OF_KIND[spec.kind](spec.name, spec.help, labels=spec.labels)

    def add(self, labels: Sequence[str], value: float | None) -> None:
        """One sample, where there is a value."""
        assert self._own is not None
        if value is not None and math.isfinite(value):
            self._own.add_metric(labels, float(value))

    def describe(self, labels: Sequence[str], facts: Mapping[str, str]) -> None:
        """What does not change, as labels of a sample that is always 1."""
        assert self._info is not None
        self._info.add_metric(labels, dict(facts))

    def distribute(
        self, labels: Sequence[str], ends: Sequence[float], counts: Sequence[int], total: float
    ) -> None:
        """A histogram: a count a bucket, and one of what is beyond the last end."""
        assert self._histogram is not None
        buckets, so_far = [], 0
        for end, count in zip((*ends, math.inf), counts, strict=True):
            so_far += count
            buckets.append(("+Inf" if math.isinf(end) else repr(float(end)), float(so_far)))
        self._histogram.add_metric(labels, buckets, total)

    @property
    def metric(self) -> Metric:
        """As prometheus_client writes it."""
        found = self._own or self._info or self._histogram
        assert found is not None
        return found
