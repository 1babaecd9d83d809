"""Waits, before the first training call, for this run's turn on a device that others use as well."""

import time
from pathlib import Path

from flatout.records.session import TURN_FILE, WAITING_FILE

_POLL_S = 0.05


class Turn:
    """Everything up to here needs little memory, and may go on side by side; what follows may not."""

    def __init__(self, folder: str) -> None:
        self._waiting = Path(folder) / WAITING_FILE
        self._turn = Path(folder) / TURN_FILE

    def wait(self) -> None:
        """Until the parent says so. Should it be gone, the keeper ends this process."""
        self._waiting.touch()
        while not self._turn.exists():
            time.sleep(_POLL_S)
