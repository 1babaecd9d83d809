"""Families as the text that scrapers read.

prometheus_client writes the same, byte for byte, and takes several times as long: with a thousand GPUs,
most of a second. Here what a sample's labels look like is worked out once, not once a metric.
"""

from collections.abc import Sequence
from typing import Literal

from prometheus_client.core import Metric
from prometheus_client.utils import floatToGoString

Format = Literal["openmetrics", "plain"]

CONTENT_TYPES: dict[Format, str] = {
    "openmetrics": "application/openmetrics-text; version=1.0.0; charset=utf-8",
    "plain": "text/plain; version=0.0.4; charset=utf-8",
}
# Kinds that plain text does not know: what they are there, and how their names end.
_IN_PLAIN_TEXT = {"counter": ("counter", "_total"), "info": ("gauge", "_info"), "unknown": ("untyped", "")}


def write(metrics: Sequence[Metric], form: Format) -> bytes:
    """The whole answer. Families without a sample are left out: an empty one says nothing."""
    lines: list[str] = []
    known: dict[tuple[tuple[str, str], ...], str] = {}
    for metric in metrics:
        if metric.samples:
            lines += _head(metric, form)
            for sample in metric.samples:
                key = tuple(sample.labels.items())
                labels = known.get(key)
                if labels is None:
                    labels = known[key] = _labels(key)
                lines.append(f"{sample.name}{labels} {_number(sample.value)}\n")
    if form == "openmetrics":
        lines.append("# EOF\n")
    return "".join(lines).encode()


def _head(metric: Metric, form: Format) -> list[str]:
    kind, ending = metric.type, ""
    if form == "plain":
        kind, ending = _IN_PLAIN_TEXT.get(kind, (kind, ""))
    name = metric.name + ending
    text = metric.documentation.replace("\\", r"\\").replace("\n", r"\n")
    if form == "openmetrics":
        text = text.replace('"', r"\"")
    return [f"# HELP {name} {text}\n", f"# TYPE {name} {kind}\n"]


def _labels(pairs: tuple[tuple[str, str], ...]) -> str:
    if not pairs:
        return ""
    shown = (f'{name}="{_escaped(value)}"' for name, value in sorted(pairs))
    return f"{{{','.join(shown)}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    # The common ones, quickly: small whole numbers look alike in Go and in Python.
    if -1e6 < value < 1e6 and value == int(value):
        return repr(float(value))
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]
