"""How jobs were ended: the document of `flatout stop`."""

import dataclasses

from flatout.records.processes import Role
from flatout.records.unknown import fill_reasons


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoppedProcess:
    """One process of what was to end."""

    pid: int
    role: Role
    command: str
    # Why it belongs to what was to end.
    why: str
    # The signals that it was sent, in order; under --dry-run, those that it would be sent.
    signals: tuple[str, ...]
    # None under --dry-run.
    gone: bool | None = None
    after_s: float | None = None
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="nothing was ended" if self.gone is None else "it is still there")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryBack:
    """What came back on one device."""

    index: int
    uuid: str | None
    # By the driver's own list of processes: what these held before, and what of it they hold still.
    held_before_bytes: int | None
    held_after_bytes: int | None
    used_before_bytes: int | None
    used_after_bytes: int | None
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoppedJob:
    """One job, or one tree of processes, that was to end."""

    name: str
    pid: int
    processes: tuple[StoppedProcess, ...]
    # How long it was let save, and how long all of it took.
    grace_s: float
    took_s: float | None
    notes: tuple[str, ...] = ()
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="nothing was ended")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stops:
    """The whole document; `ended` is None under --dry-run."""

    jobs: tuple[StoppedJob, ...]
    devices: tuple[MemoryBack, ...]
    dry_run: bool
    # Whether every process is gone, and all memory that they were seen to hold has come back.
    ended: bool | None
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="nothing was ended")
