"""The processes of one training beside each other, and the one that the others wait for."""

import dataclasses

from flatout.records.step import Share
from flatout.records.unknown import fill_reasons


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankUse:
    """One rank. In data parallel all ranks take the same time for a step: the slow one shows in its parts."""

    rank: int
    pid: int
    device: str | None
    step_ms: float | None
    updates: int
    # By the device's clock where it has been read, else by the host's.
    parts: tuple[Share, ...] = ()
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="too few steps")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Straggler:
    """The rank that has more to do in a part of its step than the others, which wait for it meanwhile."""

    rank: int
    part: str
    ms: float
    # The median of the other ranks, in the same part.
    others_ms: float
    step_ms: float

    @property
    def speedup(self) -> float:
        """Of the whole job, if this rank took as long as the others."""
        return self.step_ms / max(self.others_ms, self.step_ms - (self.ms - self.others_ms))

    def words(self) -> str:
        """In a sentence."""
        takes = f"takes {self.ms:.1f} ms a step for {_PARTS.get(self.part, self.part)}"
        return f"rank {self.rank} {takes}, the others {self.others_ms:.1f} ms: they wait for it"


_PARTS = {
    "input": "waiting for its data",
    "copies": "copies to its device",
    "other": "what the loop does beside loading, the model and the update",
    "before forward": "what comes before its forward pass",
    "forward": "its forward pass",
    "optimizer": "its update",
    "beside communication": "all but communication",
}
