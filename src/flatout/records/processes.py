"""Who holds each GPU, and which training jobs run on this machine: the document of `flatout ps`."""

import dataclasses
from typing import Literal

from flatout.records.device import Vendor
from flatout.records.unknown import fill_reasons

# `orphan`: whoever it worked for is gone. `zombie`: it has ended and is still listed, or still holds memory.
ProcessState = Literal["running", "idle", "orphan", "zombie", "unknown"]

# What a process does in its job.
Role = Literal[
    "flatout",
    "keeper",
    "launcher",
    "script",
    "rank",
    "loader worker",
    "compile worker",
    "worker",
    "checkpoint writer",
    "helper",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Holder:
    """A process on a device, as its driver lists it, and what this machine knows of it."""

    pid: int
    user: str | None
    # The name of the job that it belongs to, and the process at that job's head.
    job: str | None
    job_pid: int | None
    memory_bytes: int | None
    age_s: float | None
    state: ProcessState
    state_reason: str
    kind: Literal["compute", "graphics", "unknown"] = "unknown"
    # The share of the last seconds in which it had a kernel running.
    active_share: float | None = None
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldDevice:
    """A GPU and who holds it. `processes` is None where the driver does not say."""

    index: int
    uuid: str | None
    vendor: Vendor
    name: str
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    processes: tuple[Holder, ...] | None
    # Used, and held by nobody who is listed: drivers keep some, and so do processes that cannot be seen.
    unlisted_bytes: int | None = None
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobProcess:
    """One process of a job."""

    pid: int
    parent_pid: int
    role: Role
    name: str
    # What it was started as, shortened.
    command: str
    user: str | None
    age_s: float | None
    state: ProcessState
    state_reason: str
    # Of one core, while we looked; and what of the machine's memory is in use by it.
    cpu_share: float | None = None
    host_memory_bytes: int | None = None
    # On all GPUs together.
    gpu_memory_bytes: int | None = None
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="the operating system does not say")


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobHere:
    """A job: its head, and whatever belongs to it. Of a job whose head is gone, what was left behind."""

    # The run's id under Flatout, else the script and its arguments, shortened.
    name: str
    pid: int
    command: str
    user: str | None
    age_s: float | None
    state: ProcessState
    # Parents before their children.
    processes: tuple[JobProcess, ...]
    run: str | None = None
    # Where Flatout keeps what it records of it.
    run_folder: str | None = None
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="it does not run under Flatout")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessesHere:
    """The whole document."""

    devices: tuple[HeldDevice, ...]
    jobs: tuple[JobHere, ...]
    # How long activity was looked at.
    sampled_s: float
    # What cannot be seen from here, and why.
    notes: tuple[str, ...] = ()
