"""The batch size at the knee of throughput: the document of `flatout batch`."""

import dataclasses

from flatout.records.unknown import fill_reasons


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchTrial:
    """One size, and how the job went with it: every figure was measured."""

    batch: int
    samples_per_s: float | None
    step_ms: float | None
    peak_bytes: int | None
    # `fits`, `too large`, `too few samples`, or how the run ended.
    outcome: str
    # Samples in the largest batch that reached the model.
    reached: int | None = None
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default=f"the run: {self.outcome}", reasons={"reached": "not seen"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchSizes:
    """What was tried, and which is the smallest that is nearly as fast as the fastest."""

    run: str
    command: tuple[str, ...]
    # The size as written, and the best.
    was: int
    best: int
    sizes: tuple[BatchTrial, ...]
    # Of the device, or of what was allowed; and the share of it that stays free.
    room_bytes: int | None
    headroom: float
    # How the size is given.
    option: str
    reason: str
    consequence: str = ""
    # What makes these figures doubtful.
    notes: tuple[str, ...] = ()
    # How many runs doubling and bisecting would have taken.
    trials_by_doubling: int | None = None
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="not known on this device")
