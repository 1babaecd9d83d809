"""Pieces of PromQL: values in quotes, metrics with labels, devices by name, spans of time."""

import dataclasses
import re
from collections.abc import Iterable

BY = "instance, uuid, gpu"


def quoted(value: str) -> str:
    """A label's value as PromQL writes it."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def any_of(values: Iterable[str]) -> str:
    """A pattern that fits these values and no others, in quotes."""
    return quoted("|".join(re.escape(value) for value in values))


def selector(metric: str, matchers: Iterable[str] = (), **labels: str) -> str:
    """A metric with these labels: `flatout_device_up{gpu="3"}`."""
    parts = [*matchers, *(f"{name}={quoted(value)}" for name, value in labels.items() if value)]
    return f"{metric}{{{', '.join(parts)}}}" if parts else metric


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scope:
    """Which series are meant: those with these matchers (`cluster="a"`), of these devices if any is named."""

    where: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()
    # Whether there are devices that only dcgm-exporter tells of.
    dcgm: bool = False

    def of(self, metric: str, *more: str) -> str:
        """A metric in this scope; dcgm-exporter writes UUID."""
        label = "UUID" if metric.startswith("DCGM_") else "uuid"
        devices = (f"{label}=~{any_of(self.uuids)}",) if self.uuids else ()
        return selector(metric, (*self.where, *devices, *more))

    def all_of(self, pattern: str) -> str:
        """All metrics whose name fits."""
        return selector("", (f"__name__=~{quoted(pattern)}", *self.where))

    def either(self, ours: str, theirs: str) -> str:
        """Values by device: of our exporter's metric, and of dcgm-exporter's where that is needed.

        Aggregated once, outside of everything else: inside of a window that would be done at every step.
        """
        told = f"max by ({BY}) ({ours})"
        renamed = f'label_replace({theirs}, "uuid", "$1", "UUID", "(.*)")'
        return f"{told} or max by ({BY}) ({renamed})" if self.dcgm else told

    def over(self, function: str, expression: str, span_s: float, step_s: int) -> str:
        """A function over looks at an expression."""
        return f"{function}_over_time(({expression})[{span_s:.0f}s:{step_s}s])"
