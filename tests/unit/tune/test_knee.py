"""The knee of throughput, in few runs, from executed sizes only."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.records.batch import BatchTrial
from flatout.tune.knee import FITS, KNEE, TOO_FEW, doubling_trials, find_knee

GIB = 1 << 30


class Job:
    """A step takes `fixed` ms and `each` ms a sample, and its memory likewise."""

    def __init__(self, fixed: float, each: float, base_gib: float = 1.0, each_gib: float = 0.1) -> None:
        self.fixed, self.each = fixed, each
        self.base_gib, self.each_gib = base_gib, each_gib
        self.device_gib = 80.0
        self.ran: list[int] = []

    def run(self, size: int) -> BatchTrial:
        self.ran.append(size)
        gib = self.base_gib + self.each_gib * size
        if gib > self.device_gib:
            return BatchTrial(
                batch=size, samples_per_s=None, step_ms=None, peak_bytes=None, outcome="MemoryError"
            )
        step_ms = self.fixed + self.each * size
        return BatchTrial(
            batch=size,
            samples_per_s=1000 * size / step_ms,
            step_ms=step_ms,
            peak_bytes=round(gib * GIB),
            outcome=FITS,
        )

    def found(self, first: int = 4, headroom: float = 0.1, most: int | None = None) -> BatchTrial:
        room = round(self.device_gib * GIB)
        return find_knee(self.run(first), self.run, room_bytes=room, headroom=headroom, most=most).best


def test_where_time_is_the_samples_the_batch_stays_small() -> None:
    job = Job(fixed=0.1, each=10.0)
    assert job.found().batch == 4
    assert len(job.ran) <= 3


def test_the_knee_is_found_and_was_executed() -> None:
    job = Job(fixed=100.0, each=10.0, each_gib=0.01)
    best = job.found()
    fastest = 1000 / 10.0
    assert best.batch in job.ran
    assert best.samples_per_s is not None
    assert best.samples_per_s >= fastest * (1 - 2.2 * KNEE)
    assert len(job.ran) <= 6


def test_no_run_is_spent_on_the_last_percents_before_the_knee() -> None:
    job = Job(fixed=4.0, each=1.8, each_gib=0.01)
    best = job.found()
    # 32 and what two sizes promise: a larger one would be 2 % faster.
    assert len(job.ran) <= 4
    assert max(job.ran) < 160
    assert best.samples_per_s is not None
    assert best.samples_per_s > (1 - 2 * KNEE) * 1000 / 1.8


def test_headroom_is_kept() -> None:
    best = Job(fixed=1000.0, each=1.0).found(headroom=0.25)
    assert best.peak_bytes is not None
    assert 0.4 * 80 * GIB < best.peak_bytes <= 0.75 * 80 * GIB


def test_twice_the_first_does_not_fit() -> None:
    job = Job(fixed=100.0, each=1.0, base_gib=10.0, each_gib=10.0)
    best = job.found(first=4)
    assert best.batch in job.ran
    assert best.outcome == FITS


def test_a_data_set_smaller_than_the_batch() -> None:
    assert Job(fixed=1000.0, each=0.01, each_gib=0.0001).found(most=100).batch <= 100


def test_a_batch_that_was_smaller_than_asked_for_is_the_largest_that_there_is() -> None:
    job = Job(fixed=1000.0, each=0.01, each_gib=0.0001)

    def run(size: int) -> BatchTrial:
        if size <= 100:
            return job.run(size)
        return BatchTrial(
            batch=size, samples_per_s=None, step_ms=None, peak_bytes=None, outcome=TOO_FEW, reached=100
        )

    found = find_knee(job.run(16), run, room_bytes=80 * GIB, headroom=0.1)
    assert found.best.batch == 100
    assert found.reason == "no batch of this data set has more than 100 samples"
    assert [one.outcome for one in found.trials].count(TOO_FEW) == 1


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (TOO_FEW, "this data set has too few samples for a larger one"),
        ("the job failed: out of memory", "a larger one would not fit, or leave too little room"),
        ("the job failed: KeyError: 'x'", "a larger one did not run: the job failed: KeyError: 'x'"),
    ],
)
def test_next_to_a_size_that_failed_there_is_nothing_to_try(outcome: str, reason: str) -> None:
    """As where `drop_last` leaves no batch at all: nothing says how large one may be."""
    job = Job(fixed=1000.0, each=0.01, each_gib=0.0001)

    def run(size: int) -> BatchTrial:
        if size <= 1000:
            return job.run(size)
        job.ran.append(size)
        return BatchTrial(batch=size, samples_per_s=None, step_ms=None, peak_bytes=None, outcome=outcome)

    found = find_knee(job.run(256), run, room_bytes=80 * GIB, headroom=0.1)
    assert 700 < found.best.batch <= 1000
    assert found.reason == reason
    assert len([size for size in job.ran if size > 1000]) <= 3


def test_a_limit_of_the_users_is_told_as_that() -> None:
    job = Job(fixed=1000.0, each=0.01, each_gib=0.0001)
    found = find_knee(job.run(16), job.run, room_bytes=80 * GIB, headroom=0.1, most=64)
    assert found.best.batch == 64
    assert found.reason == "no more than 64 was to be tried"


def test_half_the_runs_of_doubling_and_bisecting() -> None:
    job = Job(fixed=500.0, each=1.0, base_gib=2.0, each_gib=0.05)
    best = job.found(first=1, headroom=0.0, most=4096)
    largest = int((80 - 2) / 0.05)
    assert best.batch > 0.8 * largest
    assert len(job.ran) <= doubling_trials(1, largest) / 2


@settings(max_examples=200, deadline=None)
@given(
    fixed=st.floats(0.0, 1000.0),
    each=st.floats(0.001, 100.0),
    base=st.floats(0.0, 60.0),
    gib=st.floats(0.001, 10.0),
    first=st.integers(1, 64),
)
def test_whatever_the_job_the_answer_was_executed_and_fits(
    fixed: float, each: float, base: float, gib: float, first: int
) -> None:
    job = Job(fixed, each, base, gib)
    if base + gib * first > 80:
        return
    best = job.found(first)
    assert best.batch in job.ran
    assert best.outcome == FITS
    assert len(job.ran) <= 8
    assert len(set(job.ran)) == len(job.ran)


def test_noise_of_one_run_does_not_end_the_search() -> None:
    job = Job(fixed=100.0, each=1.0, each_gib=0.01)

    def run(size: int) -> BatchTrial:
        if size == 8:
            slow = Job(fixed=400.0, each=1.0, each_gib=0.01)
            return slow.run(size)
        return job.run(size)

    best = find_knee(job.run(4), run, room_bytes=80 * GIB, headroom=0.1).best
    assert best.batch > 100


def test_the_count_of_doubling() -> None:
    assert doubling_trials(1, 1) == pytest.approx(2, abs=1)
    assert doubling_trials(1, 1000) >= 11
