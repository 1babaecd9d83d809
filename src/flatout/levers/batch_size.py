"""How many samples a step sees."""

from flatout.levers.job import JobFacts
from flatout.levers.lever import ONLY_ALLOWED, Lever, Settings


class BatchSize(Lever):
    """A larger batch, up to where throughput no longer grows. Only with `--allow batch-size`.

    It changes the training: each step sees more samples, an epoch has fewer steps, and the learning rate that
    was right for the old size may not be for the new one; the plan says so, and leaves it to you. Sizes are
    doubled until throughput stops growing or memory ends; the smallest within 3 % of the best is taken. The
    script's own argument is used where it has one, else its DataLoader; either way the size that reaches the
    model is checked.
    """

    id = "batch-size"
    title = "batch size"
    safety = "recipe"
    switchable = False

    @classmethod
    def check(cls, job: JobFacts) -> str:
        """The user must allow it."""
        return ONLY_ALLOWED

    @classmethod
    def predict(cls, job: JobFacts, settings: Settings) -> float:
        """What is not spent on products is shared by more samples."""
        return 1.0
