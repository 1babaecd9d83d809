"""A step: how long it takes, and the parts that it is made of."""

import dataclasses
from typing import Literal

Part = Literal[
    "input_wait",
    "host_to_device",
    "sync_stall",
    "launch_gap",
    "matmul",
    "attention",
    "memory_bound",
    "optimizer",
    "communication",
    "other_gpu",
    "host_compute",
    "unattributed",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Steady step times, with a 95 % interval of the median."""

    p50: float
    p95: float
    mean: float
    low: float
    high: float
    clock: Literal["device", "host"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Share:
    """One part of a step."""

    part: str
    ms: float
    share: float
