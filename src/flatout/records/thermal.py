"""What the guard against heat said and did: the document of `flatout power --guard`."""

import dataclasses
from typing import Literal

from flatout.records.power import LimitRestored
from flatout.records.unknown import fill_reasons


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThermalEvent:
    """A warning, or a cap that was changed."""

    index: int
    uuid: str | None
    at_unix_s: float
    what: Literal["warned", "capped", "raised", "cannot cap"]
    text: str
    # When clocks would have fallen, counted from the event.
    reaches_in_s: float | None = None
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="not forecast")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GuardReport:
    """All of a guard's watch, with the last of its events."""

    mode: Literal["warn", "cap"]
    watched_s: float
    warnings: int
    changes: int
    events: tuple[ThermalEvent, ...] = ()
    restored: tuple[LimitRestored, ...] = ()
