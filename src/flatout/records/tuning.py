"""What tuning tried and found: the document of `flatout tune`."""

import dataclasses
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from flatout.records.finding import Finding
from flatout.records.unknown import fill_reasons
from flatout.records.words import with_settings

# Why levers were left out whose turn had not come.
ENDED_BY_CTRL_C = "ended by Ctrl-C"

Verdict = Literal["kept", "rejected", "failed", "unsafe", "skipped"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pace:
    """How a job goes: as written, or under a plan."""

    step_ms: float
    samples_per_s: float | None = None
    mfu: float | None = None
    gpu_busy_share: float | None = None
    peak_bytes: int | None = None
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="not measured in this run")


class LeverTrial(msgspec.Struct, frozen=True, kw_only=True, rename={"safety": "class"}):
    """One lever with one setting: what was expected of it, what it gave, and what became of it."""

    lever: str
    safety: str
    verdict: Verdict
    reason: str
    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    predicted_speedup: float | None = None
    measured_speedup: float | None = None
    # 95 % of the measured one.
    low: float | None = None
    high: float | None = None
    # What it was tried on top of.
    on_top_of: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rung:
    """One step of the waterfall from baseline to best: the levers up to here, all measured by turns."""

    lever: str
    step_ms: float
    # Against the rung before, and against the baseline.
    gain: float
    speedup: float
    predicted: float | None = None
    samples_per_s: float | None = None
    mfu: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class GuardEvidence:
    """Why the plan is held to learn the same, or not."""

    verdict: Literal["same", "unsafe", "weak", "not needed"]
    paired: bool
    reason: str
    # The worst parameter: how far its gradient is from the reference, and how far roundoff alone takes it.
    same_state: dict[str, Any] = dataclasses.field(default_factory=dict)
    trajectory: dict[str, Any] = dataclasses.field(default_factory=dict)
    # What levers that change the training do to its losses; nobody asks that they stay the same.
    allowed: dict[str, Any] = dataclasses.field(default_factory=dict)
    # Loss curves: the baseline, its perturbed twins, and the plan; None where a step's loss was not seen.
    curves: dict[str, list[float | None]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reliability:
    """How a lever's predictions held on this machine, over all tunings."""

    trials: int
    measured_over_predicted: float
    lowest: float
    highest: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tuning:
    """The whole of it."""

    run: str
    command: tuple[str, ...]
    device: str
    # The job as it was typed after our own command and options.
    typed: str = ""
    goal: str = "throughput"
    baseline: Pace
    best: Pace
    speedup: float
    trials: tuple[LeverTrial, ...]
    ladder: tuple[Rung, ...]
    guard: GuardEvidence
    tune_seconds: float
    # By stage, in the order in which they came.
    spent_seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    summary: str
    plan: str | None = None
    patch: str | None = None
    report: str | None = None
    break_even_steps: int | None = None
    # What tuning cost, and from how long a job on as written it has paid for itself.
    gpu_hours: float | None = None
    break_even_gpu_hours: float | None = None
    compile_seconds: float | None = None
    calibration: dict[str, Reliability] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    # What held the job up as written: the levers that answer it were tried first.
    findings: tuple[Finding, ...] = ()
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="not made")


def not_tried(trials: Iterable[LeverTrial]) -> dict[str, list[str]]:
    """Levers that were left out, by the reason for it."""
    found: dict[str, list[str]] = {}
    for trial in trials:
        if trial.verdict == "skipped":
            found.setdefault(trial.reason, []).append(with_settings(trial.lever, trial.settings))
    return found
