"""What a trace says: the document of `flatout trace`.

Times are milliseconds of one step, as everywhere; where no steps are marked, of the whole trace.
"""

import dataclasses
from typing import Literal

from flatout.records.finding import Finding
from flatout.records.step import Share, StepTimes
from flatout.records.unknown import fill_reasons


@dataclasses.dataclass(frozen=True, kw_only=True)
class KernelUse:
    """A kernel: how often a step runs it, and how long that takes."""

    name: str
    kind: str
    calls: float
    ms: float
    mean_us: float
    # Of the time of all kernels.
    share: float
    tensor_cores: bool | None = None
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="neither a product nor a convolution, or its name does not say")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OperatorUse:
    """An operator, by the kernels that it launched; without a GPU, by the time that it took itself."""

    name: str
    # Kernels, where there are any; else calls of it.
    calls: float
    ms: float
    # Of the time of all kernels; without a GPU, of what all operators took themselves.
    share: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModuleUse:
    """A part of the model, by what it launched itself; without a GPU, by the time of its own operators.

    Layers that repeat are one: `blocks.*.attention`.
    """

    name: str
    ms: float
    forward_ms: float
    backward_ms: float
    # Of the same as an operator's: the optimizer's work is in it.
    share: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class SyncPoint:
    """Where the host waits for the device: how long, and for how long the device then has nothing to do."""

    call: str
    operator: str
    where: str | None
    count: float
    host_ms: float
    stall_ms: float
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="the trace has no Python stacks: torch.profiler.profile(with_stack=True)")


Bound = Literal["compute", "memory", "latency"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CounterUse:
    """A kernel by the device's own counters, from ncu: what it keeps busy, and what therefore binds it."""

    kernel: str
    # Launches that were counted, and all their time; each ran alone, with nothing beside it.
    calls: int
    ms: float | None
    # Of what multiprocessors, memory and tensor cores can do; warps, of those that fit.
    sm_share: float | None
    memory_share: float | None
    tensor_share: float | None
    occupancy: float | None
    # Latency where it comes near neither limit: too few threads, or each waits for another.
    bound: Bound | None
    # Milliseconds of one step in the trace that was read beside it.
    step_ms: float | None = None
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        reasons = {"step_ms": "no trace was read beside it, or it has no kernel of this name"}
        fill_reasons(
            self, default="ncu did not count it, or this device has no such counter", reasons=reasons
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankTrace:
    """One file of several: how its rank went."""

    file: str
    rank: int | None
    step_ms: float | None
    busy_share: float | None
    # Communication while nothing computes.
    exposed_communication_ms: float | None
    # Of a step, what is no such communication: in which nobody waits for anybody.
    alone_ms: float | None = None
    # Whether it is the one of which the document tells more.
    shown: bool = False
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="the file does not say")


_NOT_IN_A_TRACE = {
    "run": "a trace is read where it lies",
    "mfu": "a trace does not say how many operations the model needs: flatout profile counts them",
    "report": "--html FILE writes a page",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TraceSummary:
    """The document. With several files, all but `events` and `ranks` is of the one with the longest steps."""

    files: tuple[str, ...]
    # Of all files.
    events: int
    steps: int
    step_ms: StepTimes | None
    device_name: str | None
    # Of the window, the share in which the device did anything at all.
    busy_share: float | None
    waterfall: tuple[Share, ...]
    kernels: tuple[KernelUse, ...]
    operators: tuple[OperatorUse, ...]
    syncs: tuple[SyncPoint, ...]
    # Empty where calls of modules are not marked: by `flatout profile`, or by with_stack=True.
    modules: tuple[ModuleUse, ...] = dataclasses.field(default=(), kw_only=True)
    # Of the time of products and convolutions whose names say, the share on tensor cores.
    tensor_core_share: float | None
    # Of the time of all products and convolutions, the share that is off them for certain.
    off_tensor_cores_share: float | None = dataclasses.field(default=None, kw_only=True)
    kernels_per_step: float | None
    ranks: tuple[RankTrace, ...] = ()
    # By ncu; those that take most first.
    counters: tuple[CounterUse, ...] = ()
    skipped_events: int = 0
    # What dominates, and what should be done at once in place of one by one.
    advice: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    # What it shows, the most costly first; of marked steps only.
    findings: tuple[Finding, ...] = ()
    # Of `flatout trace`: a trace has no run, and does not say how many operations its model needs.
    run: str | None = None
    mfu: float | None = None
    report: str | None = None
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(
            self, default="not enough data: the trace has no kernel of a GPU", reasons=_NOT_IN_A_TRACE
        )
