"""What was tried on a module for inference, and what came of it."""

import dataclasses
from typing import Literal

from flatout.records.unknown import fill_reasons

Goal = Literal["latency", "throughput"]
# Faster and the same; no faster; other outputs; it crashed, ran out of memory or gave no answer; not tried.
WayVerdict = Literal["kept", "refused", "unsafe", "failed", "skipped"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TriedWay:
    """One way of running the module, against the best one before it."""

    # The levers that are on, by their names; the first ones are those of the way that it was held against.
    way: tuple[str, ...]
    # What is new in it.
    lever: str
    verdict: WayVerdict
    reason: str
    call_ms: float | None = None
    measured_speedup: float | None = None
    # The 95 % interval of the speedup.
    low: float | None = None
    high: float | None = None
    # How far its outputs are from the baseline's, and how far rounding explains.
    error: float | None = None
    allowed_error: float | None = None
    # Seconds until it was ready: copies of weights, compilation, capture.
    ready_s: float = 0.0
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default=self.reason or "it was not measured")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizeReport:
    """What `flatout.optimize` did. Nothing in it is predicted: every figure was measured on the examples."""

    goal: Goal
    device: str
    # Samples in the example, where it has any.
    samples: int | None
    baseline_ms: float
    best_ms: float
    # Of the best way over the module as it was, in one last comparison by turns.
    speedup: float
    low: float
    high: float
    chosen: tuple[str, ...]
    tried: tuple[TriedWay, ...]
    notes: tuple[str, ...]
    took_s: float
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="the example has no tensor with a first dimension")

    def __str__(self) -> str:
        lines = [
            f"{self.goal} on {self.device}: {self.baseline_ms:.3f} -> {self.best_ms:.3f} ms a call, "
            f"{self.speedup:.2f}x ({self.low:.2f} to {self.high:.2f}), by "
            + (" + ".join(self.chosen) or "nothing: as written is best")
        ]
        if self.samples is not None:
            rates = [1e3 * self.samples / one for one in (self.baseline_ms, self.best_ms)]
            lines.append(f"  {rates[0]:.4g} -> {rates[1]:.4g} samples/s, {self.samples} at a time")
        lines += [_line(one) for one in self.tried]
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join([*lines, f"took {self.took_s:.0f} s"])


def _line(one: TriedWay) -> str:
    gain = f"{one.measured_speedup:5.2f}x" if one.measured_speedup is not None else "     -"
    return f"  {one.verdict:8} {gain}  {one.lever:20} {one.reason}"
