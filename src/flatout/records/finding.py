"""A finding: what holds a job up, where, how that is known, and what taking it away should give."""

import dataclasses
from typing import Literal

from flatout.records.unknown import fill_reasons

Severity = Literal["high", "medium", "low"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """A line of the user's own source."""

    file: str
    line: int
    function: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One of them. Codes are never reused; `flatout explain CODE` says more."""

    code: str
    severity: Severity
    title: str
    evidence: str
    fix: str
    where: tuple[Place, ...] = ()
    predicted_speedup: float | None = None
    # How the prediction was made, in figures.
    arithmetic: str = ""
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="what it costs is not a share of the step")
