"""Jobs that ran here: they are looked after for a while after their processes are gone, and not for ever."""

import dataclasses
from pathlib import Path

from flatout.monitor.jobs_seen import JobsSeen
from flatout.monitor.jobs_watch import JobsWatch
from flatout.monitor.sampling import MachineSampler
from flatout.records.processes import JobHere
from flatout.runtime.live_jobs import ENDED_FOR_S
from flatout.runtime.process_table import Table
from tests.fakes.watching import job_here

RUN = dataclasses.replace(job_here(7, "train.py"), run_folder="/jobs/.flatout/runs/r1")
AGAIN = dataclasses.replace(RUN, pid=8)
FOREIGN = job_here(9, "other.py")


def test_a_job_is_given_for_a_while_after_its_processes_are_gone() -> None:
    now = 0.0
    seen = JobsSeen(lambda: now)
    assert seen.with_those_that_ended([RUN, FOREIGN]) == [RUN, FOREIGN]
    now = 5.0
    assert seen.with_those_that_ended([]) == [RUN], "of one without a run folder nothing is written"
    now = ENDED_FOR_S
    assert seen.with_those_that_ended([]) == [RUN]
    now = ENDED_FOR_S + 1.0
    assert seen.with_those_that_ended([]) == []


def test_one_that_is_there_again_is_given_once_and_as_it_is() -> None:
    seen = JobsSeen(lambda: 0.0)
    seen.with_those_that_ended([RUN])
    seen.with_those_that_ended([])
    assert seen.with_those_that_ended([AGAIN]) == [AGAIN]


def test_the_sampler_looks_at_how_a_job_ended_when_it_is_gone() -> None:
    looked_at: list[Path] = []

    def live(jobs: list[JobHere], _roots: object) -> list[object]:
        looked_at[:] = [Path(job.run_folder) for job in jobs]
        sampler._ended.set()
        return []

    for jobs in ((RUN,), ()):
        if jobs:
            sampler = MachineSampler([], jobs=JobsWatch(lambda: Table(())), look_for_live=live)  # type: ignore[arg-type]
        sampler._jobs = jobs
        sampler._ended.clear()
        sampler._follow_live()
        assert looked_at == [Path(RUN.run_folder)]
