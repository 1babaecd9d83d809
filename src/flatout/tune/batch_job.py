"""`flatout batch`: a job with batches of several sizes, each in a process of its own."""

import dataclasses
from pathlib import Path

from flatout.records.batch import BatchSizes, BatchTrial
from flatout.records.errors import CallerMistake, JobFailed
from flatout.records.plan import Choice
from flatout.records.profile import Profile
from flatout.records.tuning import Pace
from flatout.runtime.profiling import TRIALS_FOLDER, profile_job
from flatout.runtime.trial import OnProgress
from flatout.tune.batching import Source, consequence, sources
from flatout.tune.knee import FITS, TOO_LARGE, doubling_trials, find_knee
from flatout.tune.measuring import Measurer
from flatout.tune.pace import pace_of
from flatout.tune.request import TuneRequest

# A run of another size than asked for shows that the option is not the one.
_ABOUT = 0.01


def batch_job(
    request: TuneRequest,
    run: str,
    folder: Path,
    on_progress: OnProgress,
    *,
    levers: tuple[Choice, ...] = (),
    headroom: float,
    most: int | None = None,
) -> BatchSizes:
    """Find it; raises JobFailed where the job does not run, CallerMistake where its batch stays as it is."""
    measurer = Measurer(request, folder / TRIALS_FOLDER, on_progress)
    on_progress("as written: running it", 0, 0)
    job = dataclasses.replace(request.job, seconds=measurer.rule.most_seconds, measure_limits=False)
    baseline = profile_job(job, run, folder, on_progress)
    was = round((baseline.samples_per_step or 0) / max(1.0, baseline.micro_batches))
    if baseline.step_ms is None or not was:
        raise JobFailed(
            f"the job made {baseline.updates} updates, and how many samples reach the model was not seen",
            expected="a job that trains on batches for a few dozen updates",
            remedy=f"flatout check {request.job.command.typed()}",
        )
    now = pace_of(baseline)
    room = request.max_memory_bytes or baseline.memory.device_total_bytes
    sizes = _Sizes(measurer, levers, now, was)
    first = _trial(was, now, room) if not levers else sizes.measure_as_it_is()
    if first.outcome != FITS:
        raise JobFailed(
            f"batch {was} does not fit as written",
            expected="a job that runs as it is",
            remedy=f"flatout fit {request.job.command.typed()}",
        )
    sizes.source = _source(request, was, sizes, first)
    found = find_knee(first, sizes.run, room_bytes=room, headroom=headroom, most=most)
    choice = sizes.source.choice(found.best.batch, was)
    largest = max(one.batch for one in found.trials if one.outcome == FITS)
    return BatchSizes(
        run=run,
        command=request.job.command.words,
        was=was,
        best=found.best.batch,
        sizes=found.trials,
        room_bytes=room,
        headroom=headroom,
        option=sizes.source.option or "DataLoader(batch_size=...)",
        reason=found.reason,
        consequence=consequence(choice, found.best.batch / was) if found.best.batch != was else "",
        trials_by_doubling=doubling_trials(was, largest),
    )


class _Sizes:
    """Runs the job with one size after the other."""

    def __init__(self, measurer: Measurer, levers: tuple[Choice, ...], now: Pace, was: int) -> None:
        self._measurer = measurer
        self._levers = levers
        self._now = now
        self._was = was
        self.source = Source()
        # What was executed to find the option, by size.
        self.known: dict[int, BatchTrial] = {}

    def measure_as_it_is(self) -> BatchTrial:
        found = self._measurer.measure("as it is, under the plan", self._levers, self._now)
        return _trial(self._was, found.pace, self._measurer.request.max_memory_bytes, found.outcome)

    def run(self, size: int) -> BatchTrial:
        """One size; executed once."""
        if size not in self.known:
            self.known[size] = self.try_with(self.source, size)[0]
        return self.known[size]

    def try_with(self, source: Source, size: int) -> tuple[BatchTrial, bool]:
        """The trial, and whether as many samples as asked for reached the model."""
        choice = source.choice(size, self._was)
        found = self._measurer.measure(f"batch {size}", (*self._levers, choice), self._now)
        reached = _samples(found.profile)
        is_it = reached is None or abs(reached / size - 1) <= _ABOUT
        most = self._measurer.request.max_memory_bytes
        return _trial(size, found.pace, most, found.outcome), is_it


def _source(request: TuneRequest, was: int, sizes: _Sizes, first: BatchTrial) -> Source:
    """The option by which the size is given: the first that shows in the model's batches."""
    for source in sources(request.job.command, was):
        trial, is_it = sizes.try_with(source, 2 * was)
        if is_it and (trial.samples_per_s is not None or trial.outcome != FITS):
            sizes.known[2 * was] = trial
            return source
    raise CallerMistake(
        f"no way was found to change the batch of {first.batch} that reaches the model",
        expected="an option such as --batch-size, or a DataLoader with a batch_size",
        remedy="give the script an option for it",
    )


def _samples(profile: Profile | None) -> float | None:
    if profile is None or profile.samples_per_step is None:
        return None
    return profile.samples_per_step / max(1.0, profile.micro_batches)


def _trial(size: int, pace: Pace | None, most_bytes: int | None, ended: str = "stopped") -> BatchTrial:
    if pace is None:
        return BatchTrial(batch=size, samples_per_s=None, step_ms=None, peak_bytes=None, outcome=ended)
    is_too_large = most_bytes is not None and (pace.peak_bytes or 0) > most_bytes
    return BatchTrial(
        batch=size,
        samples_per_s=pace.samples_per_s,
        step_ms=pace.step_ms,
        peak_bytes=pace.peak_bytes,
        outcome=TOO_LARGE if is_too_large else FITS,
    )
