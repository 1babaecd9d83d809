"""How a job is doing at this moment: what `flatout run` leaves in its folder for whoever watches."""

import dataclasses
from typing import Literal

from flatout.records.energy import EnergySource
from flatout.records.unknown import fill_reasons

LIVE_FILE = "live.json"
LIVE_KIND = "live"
LIVE_VERSION = 1
# Without news for so long, whoever wrote the file is gone or stopped: what it says is told as old.
LIVE_STALE_S = 15.0

# `stalled`: no step for far longer than usual. `ended`: it is over, and `exit_code` or `signal` says how.
JobState = Literal["starting", "training", "evaluating", "stalled", "ended"]

# Upper ends of the buckets in which steps are counted, for histograms; the last bucket has no end.
STEP_BUCKETS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepTimes:
    """All steps so far, by how long they took: a count a bucket of STEP_BUCKETS_S, and of longer ones."""

    counts: tuple[int, ...] = (0,) * (len(STEP_BUCKETS_S) + 1)
    sum_s: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class LiveRank:
    """One process that trains."""

    rank: int
    pid: int
    updates: int
    # The median of the last steps, and how long ago the last one ended.
    step_s: float | None = None
    silent_s: float | None = None
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="too few steps")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LiveTotals:
    """What only ever grows, over all lives of the job: for counters."""

    steps: StepTimes = StepTimes()
    samples: int = 0
    tokens: int = 0
    data_wait_s: float = 0.0
    evaluation_s: float = 0.0
    losses_not_finite: int = 0
    skipped_updates: int = 0
    out_of_memory: int = 0
    hangs: int = 0
    # Times that steps became slower than they had been.
    slowdowns: int = 0
    # By reason, as DeviceSample names them, over all its devices.
    throttled_s: dict[str, float] = dataclasses.field(default_factory=dict)
    energy_j: float = 0.0
    energy_source: EnergySource = "none"
    # Seconds for which devices were held, and for which no kernel ran on them.
    device_s: float = 0.0
    device_idle_s: float = 0.0
    # Wall seconds in which the job held its devices and made no step; None where that was not followed.
    before_first_step_s: float | None = None
    checkpoint_s: float | None = None
    stalled_s: float | None = None
    after_last_step_s: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class LiveJob:
    """The whole document; written anew every other second, read by `watch`, `export` and `fleet`."""

    run: str
    # The script's name and its arguments, shortened; and where the run folder lies.
    name: str
    run_folder: str
    host: str
    # Of `flatout run`.
    pid: int
    user: str
    state: JobState
    state_reason: str = ""
    started_at_unix_s: float
    written_at_unix_s: float
    # Which start of the job this is.
    life: int = 1
    exit_code: int | None = None
    signal: int | None = None

    updates: int = 0
    # How many it will make, where that is known.
    updates_planned: int | None = None
    step_s: float | None = None
    # The fastest pace that it has had.
    best_step_s: float | None = None
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    promised_samples_per_s: float | None = None
    mfu: float | None = None
    # How many times faster it could be, by the floors of its last profile.
    headroom: float | None = None
    loss: float | None = None
    loss_scale: float | None = None
    # Of the last steps: the share of their time in which they waited for data.
    data_wait_share: float | None = None
    memory_peak_bytes: int | None = None
    # The newest checkpoint: when and after which update.
    checkpoint_at_unix_s: float | None = None
    checkpoint_update: int | None = None
    # The first finding of the last profile of the same script.
    finding: str | None = None
    usd_per_hour: float | None = None

    ranks: tuple[LiveRank, ...] = ()
    # The GPUs that it trains on, by uuid.
    devices: tuple[str, ...] = ()
    totals: LiveTotals = LiveTotals()
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="not known yet")
