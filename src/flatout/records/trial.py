"""One trial of a user's script: what ran, how it was kept from leaving a trace, and how it ended."""

import dataclasses
from typing import Literal

from flatout.records.unknown import fill_reasons

Outcome = Literal[
    "stopped",  # ended by Flatout at a step boundary, as planned
    "ended",  # the script came to its own end
    "failed",  # the script crashed, or left with an exit code
    "silent",  # no update within the time allowed
    "killed",  # a signal that was not ours
]
ShieldKind = Literal["overlay", "redirect", "none"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shield:
    """How the user's files were protected."""

    kind: ShieldKind
    reason: str = ""
    read_only: tuple[str, ...] = ()
    # What could not be shielded, or was kept from leaving the machine, in words.
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """How a trial went. Its steps lie in `folder`, one folder a rank."""

    name: str
    folder: str
    command: tuple[str, ...]
    outcome: Outcome
    updates: int
    ranks: int
    took_s: float
    shield: Shield
    exit_code: int | None = None
    signal: int | None = None
    to_first_update_s: float | None = None
    # The last lines of what the script said on standard error, for messages.
    said: tuple[str, ...] = ()
    # Of several ranks, the one that failed first, and how; empty where that is not known.
    culprit: str = ""
    failed_taps: dict[str, str] = dataclasses.field(default_factory=dict)
    left_over: tuple[str, ...] = ()
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self)
