"""What the user set for a search: levers to leave out, levers that are allowed, and time."""

import dataclasses

from flatout.levers.catalogue import BY_ID
from flatout.levers.job import JobFacts
from flatout.levers.lever import ONLY_ALLOWED

OUT_OF_TIME = "the time allowed was over"
TOO_SHORT = "too few to compare"
JOB_ENDED = "the job ended"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """What the user set."""

    only: frozenset[str] = frozenset()
    skip: frozenset[str] = frozenset()
    # Levers that change the training, and that the user wants nevertheless.
    allow: frozenset[str] = frozenset()
    # When there is no time for another comparison.
    deadline: float = float("inf")
    # How long one comparison may take.
    comparison_s: float = 30.0
    # Updates that the whole job makes, where the user said.
    job_steps: int | None = None
    # Whether less memory is what the user wants.
    for_memory: bool = False

    def refusal(self, lever: str, job: JobFacts) -> str:
        """Why this lever is left out, or nothing. What the job cannot have need not be allowed."""
        if self.only and lever not in self.only:
            return "left out by --only"
        if lever in self.skip:
            return "left out by --skip"
        if reason := BY_ID[lever].check(job):
            return reason
        if BY_ID[lever].safety == "recipe" and lever not in self.allow:
            return ONLY_ALLOWED
        if BY_ID[lever].safety == "memory" and not self.for_memory:
            return "it saves memory, not time: with --goal memory, or where --max-memory binds"
        if BY_ID[lever].is_for_memory(job) and not self.for_memory and lever not in self.only:
            return f"it saves memory more than time: --goal memory, or --only {lever}"
        return ""
