"""What every sink offers; an `Outbox` calls it from one thread of its own, so that nobody waits for it."""

import dataclasses
import signal as signals
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


@dataclasses.dataclass(frozen=True, slots=True)
class Ending:
    """How the job ended whose numbers came; trackers list runs by it."""

    # As a shell has it: 128 and more for a signal.
    exit_code: int = 0
    # By a signal, or because Flatout was ended itself.
    was_killed: bool = False


# Also where nobody can know: a script that logs by itself closes its sinks while it still runs.
WENT_WELL = Ending()


def ending_of(exit_code: int | None, signal: int | None) -> Ending:
    """Of a job that ended so; with neither, Flatout was ended before the job was over."""
    if signal is not None or exit_code is None:
        return Ending(128 + (signal or signals.SIGTERM), was_killed=True)
    return Ending(exit_code)


class Sink(Protocol):
    """An open tracker. Whatever it raises turns it off; it may take as long as it likes."""

    # What the user should know of how it was opened; "" where all is as it was asked for.
    note: str

    def write(self, points: Sequence[Point]) -> None:
        """Take these in, in their order. Steps may repeat and go back."""

    def close(self, ending: Ending = WENT_WELL, /) -> None:
        """Everything that was written is to be found from now on, the ending too where it is kept."""
