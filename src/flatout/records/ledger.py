"""The file in which an imagined device's requests lie: `memory/imagined/ledger.py` writes it."""

import dataclasses
from pathlib import Path

import msgspec

from flatout.records.session import LEDGER_FILE


@dataclasses.dataclass(frozen=True, kw_only=True)
class LedgerFile:
    """What a script asked of the device, in order."""

    # [number, bytes, place] where memory is taken, [number] where it is given back, [-updates] between.
    events: list[list[int]]
    # File, line, function, and the operator that ran there.
    places: list[tuple[str, int, str, str]]
    # By category, the numbers that belong to it.
    owners: dict[str, list[int]]
    updates: int
    # In which types its products were computed.
    products: list[str] = dataclasses.field(default_factory=list)
    # How many samples the script moved to the device at a time; None where it made them there.
    batch: int | None = None
    # What was asked that depends on values: by kind, where and how often.
    guessed: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)


def read_ledger(folder: Path) -> LedgerFile | None:
    """The ledger of a process, or None where it made no update."""
    try:
        return msgspec.json.decode((folder / LEDGER_FILE).read_bytes(), type=LedgerFile)
    except (OSError, msgspec.DecodeError):
        return None
