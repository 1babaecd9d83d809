"""A job for somebody else's machines, and the file that a scheduler takes: the document of `launch`."""

import dataclasses
from typing import Literal

Target = Literal["slurm", "kubernetes", "skypilot"]
TARGETS: tuple[Target, ...] = ("slurm", "kubernetes", "skypilot")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """What runs on each node: a script or module under its Python, or a whole command line."""

    kind: Literal["script", "module", "command"]
    words: tuple[str, ...]
    # Of the torchrun that the user typed: whatever does not say who meets whom.
    torchrun_options: tuple[str, ...] = ()
    wants_torchrun: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gpus:
    """How many on each node, and which: ids of the catalogue, or a name that only the target knows."""

    per_node: int
    ids: tuple[str, ...] = ()
    name_there: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What one target has and others have not; empty where nothing was said."""

    # Slurm
    partition: str = ""
    account: str = ""
    qos: str = ""
    # Kubernetes
    namespace: str = ""
    claim: str = ""
    storage_bytes: int = 0
    # SkyPilot
    cloud: str = ""
    bucket: str = ""
    setup: str = ""
    is_spot: bool = False
    # Kubernetes and SkyPilot
    image: str = ""
    workdir: str = ""
    checkpoints: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaunchJob:
    """One job, as `flatout run` would run it here, and what it is given there."""

    name: str
    target: Target
    program: Program
    folder: str
    # The Python that runs Flatout and the script there.
    python: str
    nodes: int
    processes_per_node: int
    gpus: Gpus
    # None: as written.
    plan: str | None
    plan_text: str = ""
    is_protected: bool = False
    time_s: int | None = None
    grace_s: int = 0
    restarts: int = 0
    cpus: int | None = None
    memory_bytes: int | None = None
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    settings: Settings = dataclasses.field(default_factory=Settings)

    @property
    def is_under_torchrun(self) -> bool:
        """Whether there is more than one process, or the user wants it so."""
        return self.nodes > 1 or self.processes_per_node > 1 or self.program.wants_torchrun


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaunchCheck:
    """What a parser or a schema said of the file, before anybody else saw it."""

    by: str
    outcome: Literal["ok", "failed", "skipped"]
    reason: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Launch:
    """The file, what was said of it, and how to hand it in."""

    target: Target
    name: str
    nodes: int
    gpus_per_node: int
    processes_per_node: int
    # Where it was written; None where it was only shown.
    file: str | None
    text: str
    submit: tuple[str, ...]
    checks: tuple[LaunchCheck, ...]
    notes: tuple[str, ...] = ()
    submitted: bool = False
    # What the scheduler said.
    answer: str = ""

    @property
    def is_sound(self) -> bool:
        """Whether no check failed."""
        return all(check.outcome != "failed" for check in self.checks)
