"""What goes into the user's process (an `Order`), and the names of what comes out.

Read and written with the standard library alone: the user's environment may hold nothing of ours but this.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

# Names the order's file. Its presence arms the hook; without it the hook costs one look-up.
SESSION_VARIABLE = "FLATOUT_SESSION"

ORDER_VERSION = 1
RANKS_FOLDER = "ranks"
SESSION_FILE = "session.json"
STEPS_FILE = "steps.jsonl"

# Every tap by name; each can be left out, and each can fail alone.
TAPS = ("steps", "loader", "backward", "forward", "collector")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Order:
    """What a session in the user's process is to do."""

    folder: str
    taps: tuple[str, ...] = TAPS
    stop_after_updates: int | None = None
    seed: int | None = None
    version: int = ORDER_VERSION

    def write(self, path: Path) -> None:
        """Write the order for the child to find."""
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1))

    @classmethod
    def read(cls, path: Path) -> "Order":
        """Read an order; fields that we do not know are ignored."""
        plain: dict[str, Any] = json.loads(path.read_text())
        if plain.get("version") != ORDER_VERSION:
            raise ValueError(f"{path} has order version {plain.get('version')!r}, not {ORDER_VERSION}")
        known = {field.name for field in dataclasses.fields(cls)}
        given = {name: value for name, value in plain.items() if name in known}
        given["taps"] = tuple(given.get("taps", TAPS))
        return cls(**given)
