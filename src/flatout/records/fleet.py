"""All machines at a glance: the document of `flatout fleet`."""

import dataclasses
from typing import Literal

from flatout.records.unknown import fill_reasons

# Whose metrics a device is known by.
FleetSource = Literal["flatout", "dcgm-exporter"]
# `gone`: known within the window, and told of by nobody now.
FleetDeviceState = Literal["up", "down", "gone"]
# `unreachable`: its exporter does not answer. `dropped`: Prometheus no longer asks it.
FleetMachineState = Literal["up", "unreachable", "dropped"]
FindingKind = Literal[
    "broken",
    "unreachable",
    "stalled",
    "held idle",
    "idle",
    "throttled",
    "underused",
    "slow rank",
    "no checkpoint",
]
# What cannot wait: somebody has to look now, whatever it costs.
URGENT: tuple[FindingKind, ...] = ("broken", "unreachable", "stalled")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FleetDevice:
    """One GPU: what it does now, and what became of its hours in the window."""

    machine: str
    # By which Prometheus knows its exporter.
    instance: str
    # As its exporter numbers it.
    gpu: str
    uuid: str
    name: str
    source: FleetSource
    state: FleetDeviceState = "up"
    # Means over the last quarter of an hour, each named for what it measures.
    kernel_running_share: float | None = None
    sm_active_share: float | None = None
    tensor_active_share: float | None = None
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    throttle_reasons: tuple[str, ...] = ()
    # Of the window.
    xid_count: int | None = None
    xid_last: int | None = None
    ecc_uncorrected: int | None = None
    processes: int | None = None
    # The runs of Flatout that train on it; a pod, where dcgm-exporter names one.
    runs: tuple[str, ...] = ()
    pod: str = ""
    # Seen, and held by somebody, all through the last quarter of an hour.
    recently_seen: bool = False
    recently_held: bool | None = None
    usd_per_hour: float | None = None
    price_source: str = ""
    # Of the window: there; without a kernel; so while somebody held it; lost to low clocks, at most.
    present_s: float | None = None
    idle_s: float | None = None
    idle_held_s: float | None = None
    throttled_lost_s: float | None = None
    # The same as a share of the last quarter of an hour.
    throttled_losing_share: float | None = None
    # Seconds of the window for which each reason was given.
    throttled_s: dict[str, float] = dataclasses.field(default_factory=dict)
    # Since a kernel was last seen; since it was last told of, or how long it was down in the window.
    quiet_s: float | None = None
    gone_s: float | None = None
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="no exporter tells")

    @property
    def wasted_s(self) -> float | None:
        """Seconds of the window that were paid and not used: no kernel ran, or it was broken."""
        if self.state != "up":
            return self.gone_s
        return self.idle_s


@dataclasses.dataclass(frozen=True, kw_only=True)
class FleetRank:
    """A process that trains, and what its steps take against those of the others."""

    rank: str
    machine: str
    step_s: float
    times_the_others: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class FleetJob:
    """One run under Flatout."""

    run: str
    name: str
    user: str
    machine: str
    instance: str
    state: str
    gpus: int
    updates: int | None = None
    updates_planned: int | None = None
    step_s: float | None = None
    mfu: float | None = None
    headroom: float | None = None
    data_wait_share: float | None = None
    usd_per_hour: float | None = None
    # By the clock of its own machine.
    age_s: float | None = None
    checkpoint_age_s: float | None = None
    # Seconds since its file was last written, where nobody writes it any more.
    silent_s: float | None = None
    # Of the window: the share of its GPUs' time in which no kernel ran.
    idle_share: float | None = None
    # The slowest, where there are several.
    ranks: tuple[FleetRank, ...] = ()
    rank_count: int = 0
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="its exporter does not tell")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FleetMachine:
    """One machine: means over its GPUs, and sums."""

    name: str
    instances: tuple[str, ...]
    state: FleetMachineState
    sources: tuple[FleetSource, ...]
    gpus: int
    gpu_names: tuple[str, ...]
    jobs: int
    kernel_running_share: float | None = None
    sm_active_share: float | None = None
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    power_w: float | None = None
    # How many of its GPUs.
    broken: int = 0
    throttled: int = 0
    idle: int = 0
    wasted_gpu_hours: float | None = None
    wasted_usd: float | None = None
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="no exporter tells")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FleetFinding:
    """One thing that is wrong with one GPU, machine or job."""

    kind: FindingKind
    machine: str
    says: str
    # A query that shows it, to be pasted into Prometheus.
    query: str
    gpu: str = ""
    uuid: str = ""
    run: str = ""
    # How many GPUs' worth of work it costs while it lasts; what that is an hour.
    gpus_lost: float = 0.0
    usd_per_hour: float | None = None
    # What would be lost if the job died now.
    gpu_hours_at_risk: float | None = None
    usd_at_risk: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class FleetAction:
    """What to do, most valuable first; everything that one command deals with is one action."""

    kind: FindingKind
    says: str
    because: str
    # Where to type it; empty where any machine will do.
    machine: str
    command: str
    query: str
    findings: int
    # What it costs if nothing is done until this time tomorrow.
    gpu_hours_a_day: float
    usd_a_day: float | None
    # A single loss, not one that goes on.
    is_risk: bool = False
    # An upper bound: nobody knows what an unseen machine does, or how much of a floor can be reached.
    is_at_most: bool = False

    @property
    def is_urgent(self) -> bool:
        """Whether somebody has to look now, whatever it costs."""
        return self.kind in URGENT


@dataclasses.dataclass(frozen=True, kw_only=True)
class FleetWaste:
    """GPU hours of the window that were paid and not used, by why; money where prices are known."""

    # Nobody held it; somebody did, and no kernel ran; down or gone; clocks held down by heat, at most.
    idle_gpu_hours: float = 0.0
    held_idle_gpu_hours: float = 0.0
    broken_gpu_hours: float = 0.0
    throttled_gpu_hours: float = 0.0
    paid_gpu_hours: float = 0.0
    idle_usd: float = 0.0
    held_idle_usd: float = 0.0
    broken_usd: float = 0.0
    throttled_usd: float = 0.0
    paid_usd: float = 0.0
    # GPUs whose price is not known: in the hours, not in the money.
    unpriced_gpus: int = 0

    @property
    def gpu_hours(self) -> float:
        """All of them."""
        return (
            self.idle_gpu_hours + self.held_idle_gpu_hours + self.broken_gpu_hours + self.throttled_gpu_hours
        )

    @property
    def usd(self) -> float:
        """All of it."""
        return self.idle_usd + self.held_idle_usd + self.broken_usd + self.throttled_usd


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fleet:
    """The whole document."""

    server: str
    # By the server's clock, as everything here.
    asked_at_unix_s: float
    over_s: float
    machines: tuple[FleetMachine, ...]
    # With something to say about them, unless all were asked for.
    devices: tuple[FleetDevice, ...]
    devices_left_out: int
    jobs: tuple[FleetJob, ...]
    findings: tuple[FleetFinding, ...]
    actions: tuple[FleetAction, ...]
    waste: FleetWaste
    gpus: int
    # Whether only one job was asked about.
    job: str = ""
    prices: str = ""
    notes: tuple[str, ...] = ()

    @property
    def is_urgent(self) -> bool:
        """Whether something is broken, out of reach or standing still."""
        return any(action.is_urgent for action in self.actions)
