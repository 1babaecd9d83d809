"""Fewer pauses of Python's garbage collector."""

import gc

from flatout.levers.job import JobFacts, amdahl
from flatout.levers.lever import Lever, Settings

_THRESHOLDS = (50_000, 20, 50)
_WORTH_TRYING = 0.005


class GarbageCollector(Lever):
    """Fewer pauses of Python's garbage collector.

    What exists when training begins is set apart (`gc.freeze`), and collections come later: each then looks
    at what the loop makes, not at every object of every imported library. It is never turned off: cycles that
    hold GPU memory would stay.
    """

    id = "garbage-collector"
    title = "fewer collector pauses"
    safety = "exact"

    @classmethod
    def check(cls, job: JobFacts) -> str:
        """Only where pauses were seen."""
        if job.habit("collector_share", 0.0) < _WORTH_TRYING:
            return "the collector takes less than 0.5 % of a step"
        return ""

    @classmethod
    def predict(cls, job: JobFacts, settings: Settings) -> float:
        """Nearly all of the pauses."""
        return amdahl(min(0.9, job.habit("collector_share", 0.0)), 10.0)

    def apply(self) -> None:
        """Set apart what is there, and wait longer."""
        self._found = gc.get_threshold()
        self._froze = gc.get_freeze_count() == 0
        gc.collect()
        if self._froze:
            gc.freeze()
        gc.set_threshold(*_THRESHOLDS)

    def undo(self) -> None:
        """As it was."""
        gc.set_threshold(*self._found)
        if self._froze:
            gc.unfreeze()
