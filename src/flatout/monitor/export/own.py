"""How the exporter itself is doing."""

import platform
from collections.abc import Iterator

from prometheus_client.core import Metric

from flatout.monitor.export.family import PREFIX, Family, MetricSpec
from flatout.monitor.export.look import Look
from flatout.records.version import __version__

_NAME = PREFIX + "exporter_"
BUILD = MetricSpec(
    _NAME + "build_info", "info", "Which Flatout this is; always 1.", facts=("version", "python")
)
COLLECT = MetricSpec(_NAME + "collect_seconds", "gauge", "How long the last collection took.")
ERRORS = MetricSpec(
    _NAME + "errors_total", "counter", "Collections that failed; the others are served.", ("collector",)
)
SCRAPES = MetricSpec(_NAME + "scrapes_total", "counter", "Answers given, up to a second ago.")
DROPPED = MetricSpec(
    _NAME + "labels_dropped_total",
    "counter",
    "Label values beyond the limits, or given twice, that were left out; counted at each collection.",
    ("metric",),
)
OWN_SPECS = (BUILD, COLLECT, ERRORS, SCRAPES, DROPPED)


def collect_own(look: Look) -> Iterator[Metric]:
    """Last of all, so that it knows of what went wrong before."""
    build = Family(BUILD)
    build.describe((), {"version": __version__, "python": platform.python_version()})
    yield build.metric
    collect = Family(COLLECT)
    collect.add((), look.last_collect_s)
    yield collect.metric
    errors = Family(ERRORS)
    for collector, count in sorted(look.errors.items()):
        errors.add((collector,), count)
    yield errors.metric
    scrapes = Family(SCRAPES)
    scrapes.add((), look.scrapes)
    yield scrapes.metric
    dropped = Family(DROPPED)
    for metric, count in sorted(look.admission.dropped.items()):
        dropped.add((metric,), count)
    yield dropped.metric
