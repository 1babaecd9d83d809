"""`flatout batch`: a job with batches of several sizes, each in a process of its own."""

import dataclasses
import itertools
from pathlib import Path

from flatout.records.batch import BatchSizes, BatchTrial
from flatout.records.errors import CallerMistake, JobFailed
from flatout.records.plan import Choice
from flatout.runtime.profiling import TRIALS_FOLDER, profile_job
from flatout.runtime.trial import OnProgress
from flatout.tune.batching import consequence, sources
from flatout.tune.knee import FITS, doubling_trials, find_knee
from flatout.tune.measuring import Measurer
from flatout.tune.pace import pace_of
from flatout.tune.request import TuneRequest
from flatout.tune.sizes import Sizes, batch_of

# What a larger batch may seem to save by chance.
_LESS_BY_CHANCE = 1.15
_BUSY = (
    "other work ran on this machine, and these figures are not to be relied on; run it again when it is quiet"
)


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
    was = batch_of(baseline)
    if not baseline.trial.went_well:
        raise JobFailed(
            f"{baseline.trial.ending}, with the batch as it is",
            expected="a job that runs as written",
            remedy=f"flatout check {request.job.command.typed()}",
        )
    if baseline.step_ms is None or not was:
        raise JobFailed(
            f"the job made {baseline.updates} updates, and how many samples reach the model was not seen",
            expected="a job that trains on batches for a few dozen updates",
            remedy=f"flatout check {request.job.command.typed()}",
        )
    now = pace_of(baseline)
    room = request.max_memory_bytes or baseline.memory.device_total_bytes
    sizes = Sizes(measurer, levers, now, was)
    first = sizes.trial(was, now) if not levers else sizes.as_it_is()
    if first.outcome != FITS:
        raise JobFailed(
            f"batch {was} does not fit as written",
            expected="a job that runs as it is",
            remedy=f"flatout fit {request.job.command.typed()}",
        )
    if not sizes.find_source(sources(request.job.command, was), 2 * was):
        raise CallerMistake(
            f"no way was found to change the batch of {first.batch} that reaches the model",
            expected="an option such as --batch-size, or a DataLoader with a batch_size",
            remedy="give the script an option for it",
        )
    found = find_knee(first, sizes.run, room_bytes=room, headroom=headroom, most=most)
    choice = sizes.choice(found.best.batch)
    in_a_step = sizes.samples.get(found.best.batch), baseline.samples_per_step
    times = in_a_step[0] / in_a_step[1] if in_a_step[0] and in_a_step[1] else found.best.batch / was
    largest = max(one.batch for one in found.trials if one.outcome == FITS)
    return BatchSizes(
        run=run,
        command=request.job.command.words,
        was=was,
        best=found.best.batch,
        sizes=found.trials,
        room_bytes=room,
        headroom=headroom,
        option=sizes.option,
        reason=found.reason,
        consequence=consequence(choice, times) if found.best.batch != was else "",
        notes=_doubts(found.trials),
        trials_by_doubling=doubling_trials(was, largest),
    )


def _doubts(trials: tuple[BatchTrial, ...]) -> tuple[str, ...]:
    """More samples never take less time: where they seem to, something else held the smaller batch up.

    A script that adds gradients up may have as many in an update whatever the batch: that is no more samples.
    """
    ran = [(one, one.step_ms, one.samples_per_s) for one in trials if one.step_ms and one.samples_per_s]
    for (less, less_ms, less_rate), (more, more_ms, more_rate) in itertools.pairwise(ran):
        has_more = more_ms * more_rate > _LESS_BY_CHANCE * less_ms * less_rate
        if has_more and less_ms > _LESS_BY_CHANCE * more_ms:
            took = f"a step of batch {less.batch} took longer than one of {more.batch}"
            return (f"{took}: {_BUSY}",)
    return ()
