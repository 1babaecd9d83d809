"""The file in which an imagined device's requests lie: `memory/imagined/ledger.py` writes it."""

import dataclasses
from pathlib import Path

import msgspec

from flatout.records.session import LEDGER_FILE


@dataclasses.dataclass(frozen=True, kw_only=True)
class LedgerFile:
    """What a script asked of the device, in order."""

    # [number, bytes, place] where memory is taken, [number] where it is given back, [-updates] between; [0]
    # where an optimizer sets about an update.
    events: list[list[int]]
    # File, line, function, and the operator that ran there; more than once where several ways lead there.
    places: list[tuple[str, int, str, str]]
    # By category, the numbers that belong to it.
    owners: dict[str, list[int]]
    updates: int
    # By place, the calls that lead to it, as numbers of frames, the outermost first.
    stacks: list[list[int]] = dataclasses.field(default_factory=list)
    # File, line, function.
    frames: list[tuple[str, int, str]] = dataclasses.field(default_factory=list)
    # In which types its products were computed.
    products: list[str] = dataclasses.field(default_factory=list)
    # How many samples the script moved to the device at a time; None where it made them there.
    batch: int | None = None
    # Whether the allocator's segments grow (`expandable_segments`).
    expandable: bool = False
    # What was asked that depends on values: by kind, where and how often.
    guessed: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)

    @property
    def update_events(self) -> tuple[int, ...]:
        """At which events updates ended."""
        return tuple(number for number, event in enumerate(self.events) if event[0] < 0)

    def calls_to(self, place: int) -> tuple[tuple[str, int, str], ...]:
        """File, line and function of each call on the way to a place, the outermost first."""
        return tuple(self.frames[number] for number in self.stacks[place]) if self.stacks else ()


def read_ledger(folder: Path) -> LedgerFile | None:
    """The ledger of a process, or None where it made no update."""
    try:
        return msgspec.json.decode((folder / LEDGER_FILE).read_bytes(), type=LedgerFile)
    except (OSError, msgspec.DecodeError):
        return None
