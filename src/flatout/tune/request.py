"""What to tune, and what its trials have in common."""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from flatout.levers.catalogue import BY_ID
from flatout.records.errors import CallerMistake, UnknownName
from flatout.records.plan import Choice
from flatout.runtime.command import JobCommand
from flatout.runtime.profiling import ProfileRequest
from flatout.runtime.progress import StopRule
from flatout.runtime.trial import Director, TrialPlan
from flatout.tune.batching import BATCH_SIZE, loader_settings_of, with_batch_size

Goal = Literal["throughput", "latency", "memory"]

DEFAULT_SEED = 1234


@dataclasses.dataclass(frozen=True, kw_only=True)
class TuneRequest:
    """What to tune, and within which limits."""

    job: ProfileRequest
    budget_s: float = 300.0
    only: frozenset[str] = frozenset()
    skip: frozenset[str] = frozenset()
    job_steps: int | None = None
    goal: Goal = "throughput"
    max_memory_bytes: int | None = None
    # Levers that change the training, and that the user wants nevertheless.
    allow: frozenset[str] = frozenset()
    # The run folder of an earlier tuning of this job, whose answers are taken over.
    resume: Path | None = None

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
            command=command_of(self.job.command, levers),
            stop=stop,
            order={**order_of(levers), "seed": self.seed, "infer": self.job.infer, **order},
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
        elif choice.id == BATCH_SIZE:
            settings |= loader_settings_of(choice)
    return {
        "levers": [choice.order() for choice in levers if choice.id not in ("loader", BATCH_SIZE)],
        "loader": settings,
    }


def command_of(command: JobCommand, levers: Sequence[Choice]) -> JobCommand:
    """The job's command line under these levers: an option of the script's own may be one of them."""
    for choice in levers:
        if choice.id == BATCH_SIZE:
            command = with_batch_size(command, choice)
    return command


def under(request: ProfileRequest, levers: Sequence[Choice]) -> ProfileRequest:
    """The same job with these levers on from its first step."""
    return dataclasses.replace(request, order=order_of(levers), command=command_of(request.command, levers))


def insist_on_known_levers(
    *, only: Iterable[str] = (), skip: Iterable[str] = (), allow: Iterable[str] = ()
) -> None:
    """Names that nobody knows are the caller's mistake; to be allowed is what changes the training."""
    for name in (*only, *skip):
        if name not in BY_ID:
            raise UnknownName("lever", name, BY_ID)
    not_allowed = [name for name in only if BY_ID[name].safety == "recipe" and name not in allow]
    if not_allowed:
        raise CallerMistake(
            f"--only {not_allowed[0]}, which changes the training and is not allowed",
            expected="levers that change nothing but the time of a step, or your word that they may",
            remedy=f"--allow {not_allowed[0]}",
        )
    both = sorted({*only} & {*skip})
    if both:
        raise CallerMistake(
            f"{', '.join(both)} is both wanted alone and left out",
            expected="a lever in --only or in --skip",
            remedy=f"take {both[0]} out of one of them",
        )
    recipes = [name for name, kind in BY_ID.items() if kind.safety == "recipe"]
    for name in allow:
        if name not in recipes:
            raise UnknownName("lever that changes the training", name, recipes)
