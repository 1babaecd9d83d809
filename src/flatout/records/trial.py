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
# Of the last line that a script said.
_MOST_SAID = 200


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

    @property
    def went_well(self) -> bool:
        """Whether it came to an end that was planned, by Flatout or by the script."""
        return self.outcome in ("stopped", "ended")

    @property
    def ending(self) -> str:
        """How it ended, in words."""
        if self.went_well:
            return f"the job ended after {self.updates} updates"
        if self.outcome == "silent":
            return "the job hung: it made no update any more"
        if self.outcome == "killed":
            return f"the job was killed by signal {self.signal}"
        last = [line.strip() for line in self.said if line.strip()][-1:]
        return f"the job failed: {last[0][:_MOST_SAID] if last else f'exit code {self.exit_code}'}"
