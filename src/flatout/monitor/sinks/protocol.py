"""What every sink offers; an `Outbox` calls it from one thread of its own, so that nobody waits for it."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol

from flatout.records.points import Point


@dataclasses.dataclass(frozen=True, slots=True)
class About:
    """What a sink may know of the run whose numbers come."""

    # As it will be listed; "" where the tracker shall find a name.
    name: str = ""
    # Facts beside the numbers: the command, the machine.
    facts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # A run that the script has begun itself, by its id.
    own_run: str = ""


class Sink(Protocol):
    """An open tracker. Whatever it raises turns it off; it may take as long as it likes."""

    # What the user should know of how it was opened; "" where all is as it was asked for.
    note: str

    def write(self, points: Sequence[Point]) -> None:
        """Take these in, in their order. Steps may repeat and go back."""

    def close(self) -> None:
        """Everything that was written is to be found from now on."""
