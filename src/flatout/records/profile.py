"""What a few steps of a job showed: the document of `flatout profile`.

Times are milliseconds of one step, medians unless named otherwise; evaluation is not part of a step.
"""

import dataclasses
from typing import Any, Literal

from flatout.records.finding import Finding
from flatout.records.memory_growth import MemoryHolder
from flatout.records.ranks import RankUse
from flatout.records.rated import Dtype
from flatout.records.step import Share, StepTimes
from flatout.records.trace import TraceSummary
from flatout.records.trial import Trial
from flatout.records.unknown import fill_reasons

# Others that keep fewer cores at work do not show in what is measured.
_NOBODY_CORES, _NOBODY_SHARE = 0.4, 0.2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mfu:
    """Model FLOPs a second over the peak of the device; each is None with a reason, never a guess."""

    of_rated: float | None
    of_measured: float | None
    peak_dtype: Dtype | None
    flops_per_step: int | None
    # How large a mean step is beside the one that was counted, whose batch may have been another.
    of_counted: float = 1.0
    reason: str = ""
    recomputed_flops_per_step: int | None = None
    rated_flops_per_s: float | None = None
    rated_source: str = ""
    measured_flops_per_s: float | None = None
    uncounted_operators: dict[str, int] = dataclasses.field(default_factory=dict)
    # What others reached with models of this kind, where that is known.
    typical: str = ""
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        over = [value for value in (self.of_rated, self.of_measured) if value is not None and value > 1.0]
        if over:
            raise ValueError(f"an MFU of {over[0]:.0%} cannot be")
        fill_reasons(self, default=self.reason or "not known")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryUse:
    """Bytes. What a job holds, by owner; the rest of the peak is activations and workspace."""

    allocated_peak_bytes: int | None = None
    reserved_peak_bytes: int | None = None
    device_total_bytes: int | None = None
    host_peak_bytes: int | None = None
    parameter_bytes: int | None = None
    gradient_bytes: int | None = None
    optimizer_bytes: int | None = None
    activation_bytes: int | None = None
    allocation_retries: int | None = None
    # What each step leaves behind, where it does so steadily; 0 where it does not.
    growth_bytes_per_step: float | None = None
    # Between what that lies with 95 %.
    growth_low_bytes_per_step: float | None = None
    growth_high_bytes_per_step: float | None = None
    # Who holds it, whoever holds most first; looked for only where memory grew.
    holders: tuple[MemoryHolder, ...] = ()
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="the job does not train on a GPU")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoaderUse:
    """One DataLoader: its settings, and what it cost. Worker times are for one batch in one worker."""

    data_set: str
    settings: dict[str, Any]
    batches: int
    wait_ms: float
    load_ms: float | None = None
    collate_ms: float | None = None
    workers_busy_share: float | None = None
    # How often an iterator was started while it trained, and how long each start took.
    starts: int = 0
    start_ms: float = 0.0
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="no worker reported: it ended early, or several loaders share the process")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepRow:
    """One setting of the loader, tried in the job itself."""

    settings: dict[str, Any]
    outcome: Literal["measured", "refused", "failed"]
    samples_per_s: float | None = None
    step_ms: float | None = None
    wait_ms: float | None = None
    host_bytes: int | None = None
    reason: str = ""
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default=self.reason or "not measured")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoaderSweep:
    """Every setting that was tried, the best, and why it stopped where it did."""

    rows: tuple[SweepRow, ...]
    best: dict[str, Any] | None
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceUse:
    """What the device's own counters said while the steps ran; each share names what it measures."""

    samples: int
    kernel_running_share: float | None = None
    sm_active_share: float | None = None
    tensor_active_share: float | None = None
    memory_bandwidth_share: float | None = None
    clock_compute_hz: int | None = None
    power_draw_mw: int | None = None
    temperature_max_c: int | None = None
    throttle_reasons: tuple[str, ...] | None = None
    # Of the link to the host: what it ran at, and what card and slot could do.
    pcie_generation: int | None = None
    pcie_width: int | None = None
    pcie_generation_max: int | None = None
    pcie_width_max: int | None = None
    source: str = ""
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="no sample of the device while the steps ran")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompileUse:
    """What torch.compile did."""

    compiles: int
    recompiles: int
    compile_s: float
    # Steps after the first ones in which something was compiled.
    compiles_in_steady_state: int
    graph_breaks: dict[str, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Floors:
    """What a step would take at the device's measured limits, in milliseconds.

    As written every operator runs alone, at the peak or at the bandwidth, whichever it needs longer for.
    Ideally fused, what only moves numbers is done on the way: products, attention and the update are left.
    """

    as_written_ms: float | None = None
    fused_ms: float | None = None
    # Of the floor as written, the share of what only moves numbers.
    moving_share: float | None = None
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="not known")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProductShape:
    """Products of one shape: so many at once, of m x k by k x n."""

    operator: str
    dtype: str
    batch: int
    m: int
    n: int
    k: int
    calls: int
    # Of the operations of all products.
    share: float
    # Sizes that tensor cores cannot take as they are, with the size to pad to.
    pad: dict[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LineUse:
    """How often a line of the source calls an operator in a step; in a backward, only as far as is known."""

    operator: str
    file: str
    line: int
    function: str
    calls: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryPoint:
    """How much is allocated at an instant of a step."""

    ms: float
    allocated_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Profile:
    """The document."""

    run: str
    steps: int
    updates: int
    steady_from: int
    steady: bool
    steady_reason: str
    pace_shifted_at: int | None
    step_ms: StepTimes | None
    device: str | None
    device_name: str | None
    samples_per_step: float | None
    samples_per_s: float | None
    tokens_per_s: float | None
    micro_batches: float
    skipped_updates: int
    waterfall: tuple[Share, ...]
    host: tuple[Share, ...]
    device_parts: tuple[Share, ...]
    evaluation_ms: float | None
    evaluations: int
    mfu: Mfu
    memory: MemoryUse
    loaders: tuple[LoaderUse, ...]
    compile: CompileUse
    device_use: DeviceUse
    collector_ms: float
    losses: tuple[float | None, ...]
    gradient_norms: tuple[float | None, ...]
    ranks: tuple[RankUse, ...]
    trial: Trial
    parameters: int | None = None
    optimizers: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    loader_sweep: LoaderSweep | None = None
    # Of some steps under torch's profiler, after those that were timed.
    trace: TraceSummary | None = None
    floors: Floors = dataclasses.field(default_factory=Floors)
    products: tuple[ProductShape, ...] = ()
    lines: tuple[LineUse, ...] = ()
    memory_timeline: tuple[MemoryPoint, ...] = ()
    findings: tuple[Finding, ...] = ()
    report: str | None = None
    # Cores that others kept at work before the job began, of so many.
    others_cores: float | None = None
    cores: int | None = None
    # Samples of the largest batch that a call of the model had: an epoch's last one is often smaller.
    largest_batch: float | None = None
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="not measured")

    @property
    def disturbance(self) -> str:
        """For whoever measures on a busy machine; nothing where it was quiet."""
        if self.others_cores is None or self.cores is None:
            return ""
        if self.others_cores < max(_NOBODY_CORES, _NOBODY_SHARE * self.cores):
            return ""
        return (
            f"other processes kept {self.others_cores:.1f} of {self.cores} cores at work when it began: "
            "alone, the job may be faster"
        )
