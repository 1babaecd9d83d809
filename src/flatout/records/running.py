"""How a whole job went under a plan: the document of `flatout run`."""

import dataclasses
from typing import Literal

from flatout.records.energy import Cost, Throttling
from flatout.records.finite import Diagnosis, Updates
from flatout.records.hang import Hang
from flatout.records.points import Logged
from flatout.records.protection import Protected
from flatout.records.ranks import RankUse, Straggler
from flatout.records.unknown import fill_reasons


@dataclasses.dataclass(frozen=True, kw_only=True)
class Continued:
    """Whether the first steps of a job went as they went while it was tuned."""

    verdict: Literal["inside", "left", "unknown"]
    steps: int
    reason: str
    # Whether both began with the same parameters and data, so that steps could be compared one by one.
    paired: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Alarm:
    """Steps became slower than they were, or are again as they were: medians of some dozens."""

    what: Literal["slower", "as before"]
    update: int
    step_ms: float
    best_ms: float
    rank: int = 0

    def words(self) -> str:
        """In a sentence."""
        if self.what == "as before":
            return f"from update {self.update} on, steps take {self.step_ms:.1f} ms again"
        return (
            f"steps have become {self.step_ms / self.best_ms:.2f}x as long: {self.step_ms:.1f} ms around "
            f"update {self.update}, and {self.best_ms:.1f} ms before"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cleanups:
    """Cached memory that was given back before evaluations, where the device was nearly full."""

    evaluations: int = 0
    freed_bytes: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobRun:
    """A few figures; the steps lie in the run folder."""

    run: str
    steps: int | None
    exit_code: int | None
    took_s: float
    levers: tuple[str, ...]
    # Levers that could not be applied or failed on the way, and why.
    dropped_levers: dict[str, str]
    samples_per_s: float | None = None
    promised_samples_per_s: float | None = None
    mfu: float | None = None
    signal: int | None = None
    guard: Continued | None = None
    # Of a job that was watched: when it became slower, and the recordings that were made of it.
    alarms: tuple[Alarm, ...] = ()
    recordings: tuple[str, ...] = ()
    cleanups: Cleanups = Cleanups()
    # When it made no more steps; why we ended it, where we did; a signal by which it was asked to end.
    hangs: tuple[Hang, ...] = ()
    ended_by_us: str = ""
    asked: int | None = None
    # Of a job of several ranks: what each does in a step, and the one that the others wait for.
    ranks: tuple[RankUse, ...] = ()
    straggler: Straggler | None = None
    # How often it was started.
    lives: int = 1
    # Of a job that was protected.
    protection: Protected | None = None
    # Pids of workers that it left behind, stuck, and that were ended for it.
    ended_workers: tuple[int, ...] = ()
    # Losses that were not finite, among those that were looked at; with --on-nan, how updates went, and why
    # the job was stopped where it was.
    losses_not_finite: int = 0
    updates: Updates | None = None
    not_finite: Diagnosis | None = None
    # Debug switches that were asked for, and what became of each; the files of memory-history.
    debug: dict[str, str] = dataclasses.field(default_factory=dict)
    memory_histories: tuple[str, ...] = ()
    # Over all of its lives: what its GPUs cost and drew, and for how long something held their clocks down.
    cost: Cost | None = None
    throttling: Throttling | None = None
    # A pass over the data, with its evaluations, where one was seen from beginning to end.
    epoch_s: float | None = None
    # With --log-to: where its figures went.
    logged_to: tuple[Logged, ...] = ()
    notes: tuple[str, ...] = ()
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="not measured")
