"""What `flatout export` says to programs: where it serves, what it served, which files it wrote."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportStarted:
    """Written once, when the exporter is ready."""

    pid: int
    # Where it can be scraped, where it pushes to, and the file that it writes; empty for what it does not do.
    url: str = ""
    otlp_url: str = ""
    textfile: str = ""
    every_s: float
    warnings: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class MetricSample:
    """One value, with its labels."""

    name: str
    labels: dict[str, str]
    value: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportedMetric:
    """One family."""

    name: str
    kind: str
    help: str
    samples: tuple[MetricSample, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportedOnce:
    """All metrics at one moment."""

    metrics: tuple[ExportedMetric, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportedFiles:
    """The dashboards, alerts and manifests that were written."""

    folder: str
    files: tuple[str, ...]
