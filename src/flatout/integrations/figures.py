"""What a training does at the moment, as numbers by name for a library's own loggers."""

from pathlib import Path

from flatout.records.plan import Plan
from flatout.runtime.following import Followed

PREFIX = "flatout/"


class Figures:
    """Follows one process by what its session writes down. What is not known is left out, and never 0."""

    def __init__(self, plan: Plan | None, ranks: int) -> None:
        self._plan = plan
        self._ranks = ranks
        self._followed: Followed | None = None

    def now(self, folder: Path) -> dict[str, float]:
        """Of the last steps; `folder` is where the session of this process writes."""
        if self._followed is None or self._followed.folder != folder:
            self._followed = Followed(folder)
        self._followed.look()
        pace = self._followed.pace
        samples_per_s = pace.samples_per_s()
        alone = self._ranks == 1
        # What other ranks work on is not known here, and need not be as much again.
        rates = {
            "samples_per_s" if alone else "samples_per_s_per_rank": samples_per_s,
            "tokens_per_s" if alone else "tokens_per_s_per_rank": pace.tokens_per_s(),
        }
        found = {
            "step_s": pace.blocks.median_s(),
            **rates,
            "mfu": self._mfu(samples_per_s) if alone else None,
            "data_wait_share": pace.data_wait_share(),
            "memory_peak_bytes": pace.memory_peak_bytes,
        }
        return {f"{PREFIX}{name}": float(value) for name, value in found.items() if value is not None}

    def _mfu(self, samples_per_s: float | None) -> float | None:
        """The model's operations for a sample are what they were when the plan was made."""
        plan = self._plan
        if plan is None or not (samples_per_s and plan.mfu and plan.samples_per_s):
            return None
        return plan.mfu * samples_per_s / plan.samples_per_s
