"""What is here and what to do next: the document of `flatout` without a command."""

import dataclasses
from typing import Literal

from flatout.records.unknown import fill_reasons

# `likely`: it shows a training or an inference, and something in it starts that. `possible`: one of the two.
Likelihood = Literal["likely", "possible"]
RunOutcome = Literal[
    "done", "running", "out of memory", "interrupted", "not finite", "hung", "stopped", "killed", "failed"
]
PlanState = Literal["fresh", "stale", "unreadable"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class GpuHere:
    """One GPU, as far as a first look goes."""

    name: str
    memory_total_bytes: int | None = None
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="its driver does not tell")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MachineHere:
    """The machine in a line: `flatout doctor` looks closer."""

    gpus: tuple[GpuHere, ...] = ()
    cpu: str = ""
    cores: int | None = None
    memory_total_bytes: int | None = None
    # Of the Python that jobs would run with.
    torch: str | None = None
    python: str = ""
    # What keeps GPUs from being seen.
    problems: tuple[str, ...] = ()
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="the operating system does not tell")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScriptHere:
    """A file that looks like a job, and what of its source says so."""

    path: str
    kind: Literal["training", "inference"]
    likelihood: Likelihood
    reasons: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanHere:
    """The plan of this folder, and whether it still holds."""

    path: str
    state: PlanState
    # The job that it is for, as one would type it; empty where that is not known.
    job: str = ""
    speedup: float | None = None
    levers: tuple[str, ...] = ()
    # What is not as it was, or why it cannot be read.
    differences: tuple[str, ...] = ()
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="it does not say")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunHere:
    """A run that was made here, and how it went."""

    id: str
    command: str
    created_at: str
    outcome: RunOutcome
    # How it went, in a sentence; and the job, as one would type it.
    about: str
    job: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointHere:
    """What a protected job saved, and the command that goes on from there."""

    update: int
    folder: str
    command: str
    # Whether the script is still the one that saved it.
    same_script: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Suggestion:
    """A command to paste, and why."""

    command: str
    why: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class NextStep:
    """What is here, one suggestion, and a few others."""

    machine: MachineHere
    folder: str
    suggestion: Suggestion
    others: tuple[Suggestion, ...] = ()
    scripts: tuple[ScriptHere, ...] = ()
    plan: PlanHere | None = None
    # How many runs are kept here, and the last one of a job; those that are running.
    runs: int = 0
    last_run: RunHere | None = None
    running: tuple[RunHere, ...] = ()
    checkpoint: CheckpointHere | None = None
    # What could not be read, and where the look ended early.
    notes: tuple[str, ...] = ()
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="there is none")
