"""Jobs of which something ran here a moment ago: how one ended is written when its processes are gone."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from flatout.records.processes import JobHere
from flatout.runtime.live_jobs import ENDED_FOR_S


class JobsSeen:
    """Remembers jobs with a run folder for as long as it is told how they ended."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._seen: dict[Path, tuple[float, JobHere]] = {}

    def with_those_that_ended(self, jobs: Sequence[JobHere]) -> list[JobHere]:
        """These, and others that were among them not long ago."""
        now_s = self._monotonic()
        for job in jobs:
            if job.run_folder:
                self._seen[Path(job.run_folder)] = now_s, job
        self._seen = {path: seen for path, seen in self._seen.items() if now_s - seen[0] <= ENDED_FOR_S}
        present = {Path(job.run_folder) for job in jobs if job.run_folder}
        return [*jobs, *(job for path, (_, job) in self._seen.items() if path not in present)]
