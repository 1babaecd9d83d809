"""A larger batch on top of a plan: up to the knee, as far as memory reaches, and only where it pays."""

import dataclasses
from typing import Any

import pytest

from flatout.records.plan import Choice
from flatout.records.profile import MemoryUse
from flatout.records.tuning import Pace
from flatout.runtime.command import JobCommand
from flatout.runtime.profiling import ProfileRequest
from flatout.tune.larger_batch import LargerBatch, larger_batch
from flatout.tune.pace import Measured
from flatout.tune.request import TuneRequest
from tests.profiles import profile

WAS = 4
BF16, COMPILE = Choice(id="bf16"), Choice(id="compile", settings={"mode": "default"})


@dataclasses.dataclass
class Job:
    """A step takes `fixed` ms and `each` ms a sample, and memory for each; the compiler halves the time."""

    fixed: float = 40.0
    each: float = 1.0
    bytes_each: int = 1
    room: int = 1000
    # Whether the option reaches the model; and what the compiler takes for itself.
    obeys: bool = True
    graphs: int = 0
    most: int | None = None
    # How many the data set has.
    samples: int = 1 << 30
    ran: list[tuple[int, bool]] = dataclasses.field(default_factory=list)

    @property
    def request(self) -> TuneRequest:
        words = ("python", "t.py", "-b", str(WAS))
        command = JobCommand(words, own_python=True, given=words[1:])
        allow = frozenset({"batch-size"})
        return TuneRequest(job=ProfileRequest(command=command), allow=allow, max_memory_bytes=self.most)

    def pace(self, size: int, *, compiled: bool) -> Pace:
        step_ms = (self.fixed + self.each * size) / (2 if compiled else 1)
        peak = self.bytes_each * size + (self.graphs if compiled else 0)
        return Pace(step_ms=step_ms, samples_per_s=1000 * size / step_ms, peak_bytes=peak)

    def measure(self, _what: str, levers: tuple[Choice, ...], _now: Pace, **_: int) -> Measured:
        choice = next((one for one in levers if one.id == "batch-size"), None)
        asked = choice.settings.get("-b", WAS) if choice is not None else WAS
        size, compiled = min(asked, self.samples) if self.obeys else WAS, COMPILE in levers
        self.ran.append((size, compiled))
        pace = self.pace(size, compiled=compiled)
        if (pace.peak_bytes or 0) > self.room:
            return Measured(None, None, "failed")
        return Measured(
            pace,
            profile(samples_per_step=float(size), micro_batches=1.0, largest_batch=float(size)),
            "stopped",
        )

    def is_too_large(self, pace: Pace) -> bool:
        return self.most is not None and (pace.peak_bytes or 0) > self.most

    def larger(
        self, *chosen: Choice, deadline: float = 1e18, held: int | None = 0, left_out: str = ""
    ) -> LargerBatch:
        memory = MemoryUse(
            device_total_bytes=self.room, parameter_bytes=held, gradient_bytes=0, optimizer_bytes=0
        )
        baseline = profile(
            samples_per_step=float(WAS), micro_batches=1.0, largest_batch=float(WAS), memory=memory
        )
        now = self.pace(WAS, compiled=COMPILE in chosen)
        measurer: Any = self
        return larger_batch(measurer, baseline, chosen, now, deadline=deadline, left_out=left_out)


def size_of(found: LargerBatch) -> int | None:
    return found.choice.settings["-b"] if found.choice is not None else None


def test_the_knee_is_found_in_few_runs_of_the_whole_plan() -> None:
    job = Job(room=100_000)
    found = job.larger(BF16, COMPILE)
    size = size_of(found)
    assert size is not None
    assert size >= 256
    assert (size, True) in job.ran
    assert all(compiled for _, compiled in job.ran)
    assert len(job.ran) <= 5
    assert found.pace == job.pace(size, compiled=True)
    assert "learning rate" in found.note
    assert [trial.verdict for trial in found.trials].count("kept") == 1


def test_where_samples_are_all_that_takes_time_the_size_stays() -> None:
    found = Job(fixed=0.01).larger(BF16)
    assert found.choice is None
    assert {trial.verdict for trial in found.trials} == {"rejected"}
    assert "does not grow" in found.trials[0].reason


def test_a_size_that_no_batch_of_the_data_set_has_was_not_executed() -> None:
    job = Job(fixed=400.0, room=1 << 40, samples=20)
    found = job.larger(BF16)
    assert size_of(found) is not None
    assert WAS < (size_of(found) or 0) <= 20
    missed = [trial for trial in found.trials if trial.verdict == "failed"]
    assert missed
    assert all("too few samples" in trial.reason for trial in missed)


def test_no_size_is_chosen_that_leaves_no_room() -> None:
    job = Job(room=100)
    size = size_of(job.larger(BF16))
    assert size is not None
    assert 40 <= size <= 90
    assert all(tried <= 100 for tried, _ in job.ran)


def test_what_was_allowed_of_memory_is_kept_to() -> None:
    job = Job(most=20)
    size = size_of(job.larger(BF16))
    assert size is not None
    assert 8 <= size <= 18


def test_an_option_that_does_something_else_is_not_used() -> None:
    found = Job(obeys=False).larger(BF16)
    assert found.choice is None
    assert len(found.trials) == 2  # the option, and the loader
    assert "4 samples reach the model" in found.trials[0].reason


def test_a_plan_that_no_longer_fits_leaves_the_size() -> None:
    found = Job(graphs=1000).larger(BF16, COMPILE)
    assert found.choice is None
    assert {trial.verdict for trial in found.trials} == {"failed"}


@pytest.mark.parametrize(
    ("room", "held", "times"), [(100_000, 0, 8), (30, 0, 4), (10, 0, 2), (100_000, None, 2)]
)
def test_when_time_is_over_the_size_that_surely_fits_was_executed(
    room: int, held: int | None, times: int
) -> None:
    found = Job(room=room).larger(BF16, deadline=0.0, held=held)
    assert size_of(found) == times * WAS
    told = "time to run" if room > 8 * WAS else "knee"
    assert told in found.trials[0].reason


def test_where_the_user_ended_the_search_no_size_is_tried() -> None:
    job = Job()
    [trial] = job.larger(left_out="ended by Ctrl-C").trials
    assert (trial.verdict, trial.reason) == ("skipped", "ended by Ctrl-C")
    assert job.ran == []


def test_a_knee_between_two_sizes_is_executed() -> None:
    job = Job(room=100_000, fixed=0.4, each=1.0)
    size = size_of(job.larger(BF16))
    assert size is not None
    assert WAS < size < 8 * WAS
    assert len(job.ran) <= 3


@pytest.mark.parametrize("goal", ["latency", "memory"])
def test_other_goals_are_not_served_by_it(goal: Any) -> None:
    job = Job()
    request = dataclasses.replace(job.request, goal=goal)
    measurer: Any = type("With", (), {"request": request})()
    now = job.pace(WAS, compiled=False)
    found = larger_batch(measurer, profile(), (), now, deadline=1e18)
    assert found.choice is None
    assert goal in found.trials[0].reason
