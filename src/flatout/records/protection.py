"""`flatout run --protect`: what it wants of the script's process, and how that went."""

import dataclasses

from flatout.records.unknown import fill_reasons

# Among what a session knows of protection while a script runs its loop again: nothing in it is real.
ON_ITS_WAY_BACK = "on_its_way_back"


@dataclasses.dataclass(frozen=True)
class Protection:
    """Where to save, and how often: after so many updates, or so many seconds."""

    folder: str
    every_updates: int = 0
    every_s: float = 0.0
    # Until each checkpoint is on the disk: a rehearsal is ended soon after.
    waits: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Protected:
    """What became of it, on the first rank."""

    folder: str
    # The update that this life of the script went on from, and how long it took to come there.
    resumed_at: int | None = None
    came_back_s: float | None = None
    saved: int = 0
    saved_at: int | None = None
    # The longest that training stood still for a checkpoint.
    stall_s: float | None = None
    # Whether updates that an earlier life had made after the checkpoint came out the same.
    verified: str = ""
    repeats: bool | None = None
    problem: str = ""
    # What has a state that is neither plain data nor tensors, and begins anew.
    left_out: tuple[str, ...] = ()
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(
            self, default="it began anew" if self.resumed_at is None else "there was nothing to tell"
        )
