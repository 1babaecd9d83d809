"""The DataLoader's settings."""

from flatout.levers.job import JobFacts, amdahl
from flatout.levers.lever import Lever, Settings

_WORTH_TRYING = 0.03


class Loader(Lever):
    """Workers, pinning, persistence and prefetching of the script's own DataLoader, as measured in the job.

    Each setting is tried in a run of its own, within what CPU and memory allow: a loader that is fast alone
    may starve the training loop of cores. The order of samples stays; a data set that draws random numbers
    draws others in workers. Workers live on from pass to pass where the data set was seen to be the same at
    the start of each; `flatout run` looks at every start, and begins with new ones where it has changed.
    Refused: workers for an iterable data set that never asks which worker it is in, and for one that holds
    tensors on a GPU.
    """

    id = "loader"
    title = "DataLoader settings"
    safety = "resampled"
    switchable = False

    @classmethod
    def check(cls, job: JobFacts) -> str:
        """Only where the loop waits for it."""
        if not job.loaders:
            return "the script uses no DataLoader"
        if job.host_shares.get("input_wait", 0.0) < _WORTH_TRYING:
            return "the loop waits for data less than 3 % of the time"
        return ""

    @classmethod
    def predict(cls, job: JobFacts, settings: Settings) -> float:
        """No wait at all."""
        return amdahl(min(0.95, job.host_shares.get("input_wait", 0.0)), 20.0)
