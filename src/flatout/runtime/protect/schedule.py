"""When to save: after so many updates or seconds, and before a long pause; all ranks at the same update."""

import statistics
from typing import Any

from flatout.records.protection import Protection
from flatout.runtime.checkpoint.ranks import Ranks
from flatout.runtime.protect.pauses import Pauses

# Updates by which ranks know their pace, and turn seconds into updates: their clocks differ, these do not.
_PACE = 20


class Schedule:
    """Of one rank; all come to the same answers."""

    def __init__(self, torch: Any, wish: Protection) -> None:
        self._torch = torch
        self._every_updates = wish.every_updates
        self._every_s = wish.every_s
        self._pauses = Pauses()
        # Made at the first update: by then they have met.
        self._ranks: Ranks | None = None
        self._saved_s: float | None = None
        self._last_s: float | None = None
        self._steps: list[float] = []

    def is_due(self, number: int, now_s: float) -> bool:
        """At the end of an update."""
        if self._saved_s is None:
            self._saved_s = now_s
        if self._every_updates:
            return number % self._every_updates == 0
        if self._ranks is None:
            self._ranks = Ranks(self._torch)
        if self._ranks.count > 1:
            self._agree(self._ranks, now_s)
            return False
        is_due = self._pauses.is_before_one(number, now_s) or now_s - self._saved_s >= self._every_s
        if is_due:
            self._saved_s = now_s
        return is_due

    def _agree(self, ranks: Ranks, now_s: float) -> None:
        """After some updates, the first rank says after how many updates so many seconds are over."""
        if self._last_s is not None:
            self._steps.append(now_s - self._last_s)
        self._last_s = now_s
        if len(self._steps) == _PACE:
            step_s = max(1e-6, statistics.median(self._steps))
            self._every_updates = int(ranks.agree(lambda: str(max(1, round(self._every_s / step_s)))))
