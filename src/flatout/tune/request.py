"""What to tune, and what its trials have in common."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from flatout.records.plan import Choice
from flatout.runtime.profiling import ProfileRequest
from flatout.runtime.progress import StopRule
from flatout.runtime.trial import Director, TrialPlan

DEFAULT_SEED = 1234


@dataclasses.dataclass(frozen=True, kw_only=True)
class TuneRequest:
    """What to tune, and within which limits."""

    job: ProfileRequest
    budget_s: float = 300.0
    only: frozenset[str] = frozenset()
    skip: frozenset[str] = frozenset()
    job_steps: int | None = None

    @property
    def seed(self) -> int:
        """Every trial has the same."""
        return DEFAULT_SEED if self.job.seed is None else self.job.seed

    def trial(
        self,
        name: str,
        stop: StopRule,
        levers: Sequence[Choice] = (),
        *,
        director: Director | None = None,
        **order: Any,
    ) -> TrialPlan:
        """A trial of the job under some levers."""
        return TrialPlan(
            name=name,
            command=self.job.command,
            stop=stop,
            order={**order_of(levers), "seed": self.seed, **order},
            startup_s=self.job.startup_s,
            silence_s=self.job.silence_s,
            environment=self.job.environment,
            director=director,
        )


def order_of(levers: Sequence[Choice]) -> dict[str, Any]:
    """What a session is to do about these levers. The loader's settings belong to its constructor."""
    settings: dict[str, Any] = {}
    for choice in levers:
        if choice.id == "loader":
            settings |= choice.settings
    return {
        "levers": [choice.order() for choice in levers if choice.id != "loader"],
        "loader": settings,
    }
