"""What a job's GPUs lost to clock limits, what they drew, and what that and their hours cost.

Seconds and joules are sums over all devices, unless a name says otherwise.
"""

import dataclasses
from typing import Literal

from flatout.records.unknown import fill_reasons

LimitKind = Literal["thermal", "power", "other"]
LIMIT_KINDS: tuple[LimitKind, ...] = ("thermal", "power", "other")

# `counter`: the device's own. `power`: the power that it drew, summed up between samples.
EnergySource = Literal["counter", "power", "counter and power", "none"]

# Where the time of a job's GPUs went, other than into steps.
IdleCause = Literal[
    "before_first_step",
    "loader_wait",
    "evaluation",
    "checkpoint",
    "stalled",
    "after_last_step",
    "unattributed",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Throttling:
    """For how long clocks were held down, and how much work that cost at most.

    `lost_s` counts, while a kernel runs, the share of its clock that a device did not have: work that waits
    for memory or data loses less than that.
    """

    # Seconds for which a reason was given, by its name; several can be given at once.
    given_s: dict[str, float] = dataclasses.field(default_factory=dict)
    # Seconds of full clock lost, by kind; each instant counts for one kind.
    lost_s: dict[LimitKind, float] | None = None
    # Seconds for which reasons were known, and for which they were not.
    observed_s: float = 0.0
    unobserved_s: float = 0.0
    # What clocks are held against, the highest of all devices, and where that is from.
    reference_hz: int | None = None
    reference_source: str = ""
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="neither clocks nor reasons were seen")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Energy:
    """Joules of one or several devices; `joules` is what is known, for `covered_s` of their time."""

    joules: float | None = None
    source: EnergySource = "none"
    covered_s: float = 0.0
    # Device-seconds between samples for which neither the counter nor the power is known.
    missing_s: float = 0.0
    # Times that a counter began anew.
    resets: int = 0
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="no energy counter and no power were seen")

    @property
    def mean_watts(self) -> float | None:
        """The mean power of one device."""
        return self.joules / self.covered_s if self.joules is not None and self.covered_s > 0 else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class HourPrice:
    """What one GPU costs for an hour, and who says so."""

    usd_per_gpu_hour: float | None
    source: str
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default=self.source or "no price is known")


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobTime:
    """What a job did with its GPUs. Wall seconds, during which all `gpus` are held; None is unknown."""

    gpus: int
    held_s: float
    steps: int
    samples: int | None = None
    tokens: int | None = None
    samples_per_epoch: int | None = None
    steps_per_epoch: float | None = None
    steps_left: int | None = None
    # The pace of the last steps, where it is better known than by held_s / steps.
    step_s: float | None = None
    before_first_step_s: float | None = None
    loader_wait_s: float | None = None
    evaluation_s: float | None = None
    checkpoint_s: float | None = None
    stalled_s: float | None = None
    after_last_step_s: float | None = None
    # The steps themselves, with their waiting for data.
    steps_s: float | None = None
    # Device-seconds in which no kernel ran, as the devices say.
    kernels_absent_device_s: float | None = None
    energy: Energy = Energy()
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="not measured")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """What a job cost so far, and what one of its steps, samples, tokens and epochs does.

    Everything is paid for: dollars a step are those of all its GPU hours over all its steps.
    """

    gpus: int
    gpu_hours: float
    price: HourPrice
    # GPU hours that did not go into steps, by cause; they are paid for like the others.
    unused_gpu_hours: dict[IdleCause, float] = dataclasses.field(default_factory=dict)
    # GPU hours in which no kernel ran at all, for whatever cause.
    kernels_absent_gpu_hours: float | None = None
    usd: float | None = None
    usd_unused: float | None = None
    usd_per_step: float | None = None
    usd_per_thousand_samples: float | None = None
    usd_per_million_tokens: float | None = None
    usd_per_epoch: float | None = None
    # What the steps that are left will cost, at the pace of the last ones.
    usd_to_end: float | None = None
    joules_per_step: float | None = None
    samples_per_joule: float | None = None
    energy: Energy = Energy()
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default=self.price.source if self.price.usd_per_gpu_hour is None else "not known")

    @property
    def unused_share(self) -> float | None:
        """Of the GPU hours, the share that did not go into steps."""
        return sum(self.unused_gpu_hours.values()) / self.gpu_hours if self.gpu_hours > 0 else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunCost:
    """One run under `flatout run`, over or not. `cost` is None where it had no GPU, or left no account."""

    run: str
    name: str
    state: str
    steps: int
    cost: Cost | None
    # Seconds that clock limits were given for, by reason.
    throttled_s: dict[str, float] = dataclasses.field(default_factory=dict)
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="it left no account of its GPUs")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CostReport:
    """The document of `flatout cost`: one run or several, and all of them together."""

    runs: tuple[RunCost, ...]
    gpu_hours: float
    unused_gpu_hours: float
    usd: float | None
    usd_unused: float | None
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="of some of these runs the price is not known")
