"""Jobs that outlived their Flatout: `flatout run` was killed, and what it had started trains on."""

from collections.abc import Iterable
from pathlib import Path

from flatout.runtime.jobs_here import Job, jobs_in
from flatout.runtime.process_table import read_table


def outliving(run_folder: Path, jobs: Iterable[Job] | None = None) -> Job | None:
    """The job of this run where its script or launcher still runs; workers alone are no job."""
    place = run_folder.resolve()
    for job in jobs_in(read_table()) if jobs is None else jobs:
        main = job.main
        if (
            job.run_folder == place
            and job.roles[main.pid] not in ("flatout", "keeper", "helper")
            and main.pid not in job.orphans
            and not main.zombie
        ):
            return job
    return None
