"""A job that stood still: the document's part, and what a rank leaves for whoever watches.

A heartbeat is a file of one record that the job writes in place, in memory: it costs no system call.
"""

import dataclasses
import struct
from pathlib import Path

from flatout.records.unknown import fill_reasons

HEARTBEAT_FILE = "heartbeat"
STACKS_FILE = "stacks.txt"
# Updates, then seconds of the machine's steady clock: of the last update, and of the last sign of any work.
HEARTBEAT = struct.Struct("<Qdd")
# Of the real-time signals, one that nobody is known to use: it makes a process write its stacks down.
STACKS_SIGNAL_ABOVE_MIN = 11


@dataclasses.dataclass(frozen=True)
class Heartbeat:
    """As a rank last wrote it."""

    rank: int
    pid: int
    folder: str
    updates: int
    updated_s: float
    sign_s: float


def read_heartbeat(path: Path) -> Heartbeat | None:
    """Of a rank's folder, which is named by rank and pid; None where it cannot be read."""
    try:
        updates, updated_s, sign_s = HEARTBEAT.unpack(path.read_bytes())
        rank, pid = (int(part) for part in path.parent.name.split("-"))
    except (OSError, ValueError, struct.error):
        return None
    return Heartbeat(rank, pid, str(path.parent), updates, updated_s, sign_s)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankStanding:
    """Where one rank stands still."""

    rank: int
    pid: int
    updates: int
    # What the system says of the process: running, sleeping, disk-sleep, zombie, gone.
    state: str
    # The innermost line of the script's own with its function, and the innermost call of all.
    where: str | None = None
    call: str | None = None
    stack: tuple[str, ...] = ()
    source: str = ""
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="its stack could not be read")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hang:
    """No update for far longer than usual."""

    after_update: int
    silent_s: float
    usual_s: float | None
    ranks: tuple[RankStanding, ...]
    culprit: int | None
    reason: str
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(
            self, default="all ranks look alike", reasons={"usual_s": "it has made too few updates to tell"}
        )

    def words(self) -> str:
        """In a sentence or two."""
        if not self.after_update:
            return f"no update yet, {self.silent_s:.0f} s after the start: {self.reason}"
        if self.usual_s is None:
            return f"no update for {self.silent_s:.0f} s after update {self.after_update}: {self.reason}"
        usual = f"{self.usual_s:.1f}" if self.usual_s < 10 else f"{self.usual_s:.0f}"
        said = f"no update for {self.silent_s:.0f} s after update {self.after_update} (usually {usual} s)"
        return f"{said}: {self.reason}"
