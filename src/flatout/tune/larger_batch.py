"""A larger batch on top of a plan, where the user allows that."""

import dataclasses

import msgspec

from flatout.levers.catalogue import BY_ID
from flatout.levers.job import JobFacts
from flatout.records.batch import BatchTrial
from flatout.records.plan import Choice
from flatout.records.profile import MemoryUse, Profile
from flatout.records.tuning import LeverTrial, Pace, Verdict
from flatout.records.words import memory_size
from flatout.tune.batching import BATCH_SIZE, consequence, sources
from flatout.tune.conclusions import WORTH
from flatout.tune.knee import FITS, TOO_FEW, TOO_LARGE, Found, find_knee
from flatout.tune.limits import OUT_OF_TIME
from flatout.tune.measuring import Measurer
from flatout.tune.pace import gain
from flatout.tune.request import TuneRequest
from flatout.tune.sizes import Sizes, batch_of

# Of the device's memory, for what a larger batch needs once in a while.
_HEADROOM = 0.1
# How many times the size as written is tried first, as far as that surely fits: lines through sizes that lie
# far apart tell more, and often there is time for one alone.
_FIRST = (8, 4)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LargerBatch:
    """What became of it: without a choice the size stays."""

    trials: list[LeverTrial]
    choice: Choice | None = None
    pace: Pace | None = None
    note: str = ""


def larger_batch(
    measurer: Measurer,
    baseline: Profile,
    chosen: tuple[Choice, ...],
    now: Pace,
    *,
    deadline: float,
    left_out: str = "",
) -> LargerBatch:
    """A larger batch, where the user allows that: on top of the plan, up to the knee of throughput.

    `left_out` says why none is tried any more.
    """
    refusal = _refusal(measurer.request, baseline) or left_out
    if refusal:
        return LargerBatch(trials=[_skipped(refusal)])
    size = batch_of(baseline)
    room = measurer.request.max_memory_bytes or baseline.memory.device_total_bytes
    sizes = Sizes(measurer, chosen, now, size)
    first = sizes.trial(size, now)
    second = size * _times_that_fit(now, baseline.memory, room)
    if not sizes.find_source(sources(measurer.request.job.command, size), second):
        missed = [_trial(choice, "failed", why) for choice, why in sizes.in_vain]
        return LargerBatch(trials=missed or [_skipped("no way was found to change the size")])
    found = find_knee(first, sizes.run, room_bytes=room, headroom=_HEADROOM, deadline=deadline, second=second)
    tried = [one for one in found.trials if one.batch != size]
    trials = [_told(one, first, sizes.choice(one.batch), found) for one in tried]
    if found.best.batch <= size:
        return LargerBatch(trials=trials)
    choice, pace = sizes.choice(found.best.batch), sizes.paces[found.best.batch]
    by = gain(now, pace)
    if by < 1 + WORTH:
        why = "a larger batch was no faster"
        return LargerBatch(trials=[_rejected(trial, why) for trial in trials], note=why)
    times = sizes.samples[found.best.batch] / (baseline.samples_per_step or 1.0)
    told = consequence(choice, times)
    kept = [
        msgspec.structs.replace(trial, measured_speedup=by) if trial.verdict == "kept" else trial
        for trial in trials
    ]
    measured = dataclasses.replace(choice, measured_speedup=by, reason=told)
    return LargerBatch(trials=kept, choice=measured, pace=pace, note=told)


def _told(one: BatchTrial, first: BatchTrial, choice: Choice, found: Found) -> LeverTrial:
    """What became of a size."""
    if one.outcome == TOO_LARGE:
        return _trial(choice, "failed", f"{memory_size(one.peak_bytes or 0)}: more than --max-memory")
    if one.outcome == TOO_FEW:
        return _trial(choice, "failed", "this data set has too few samples for it")
    if one.outcome != FITS:
        return _trial(choice, "failed", one.outcome)
    by = one.samples_per_s / first.samples_per_s if one.samples_per_s and first.samples_per_s else None
    if one is found.best:
        is_knee = found.reason != OUT_OF_TIME
        why = "the knee of throughput" if is_knee else "the fastest that there was time to run"
        return _trial(choice, "kept", why, by)
    if found.best is first:
        return _trial(choice, "rejected", "throughput does not grow with the batch", by)
    return _trial(choice, "rejected", f"batch {found.best.batch} is at the knee: {found.reason}", by)


def _times_that_fit(now: Pace, memory: MemoryUse, room_bytes: int | None) -> int:
    """How many times the batch surely fits: what the model holds stays, all else grows with the batch."""
    held = [memory.parameter_bytes, memory.gradient_bytes, memory.optimizer_bytes]
    if room_bytes is None or now.peak_bytes is None or None in held:
        return 2
    fixed = sum(one for one in held if one is not None)
    growing = max(0, now.peak_bytes - fixed)
    return next((times for times in _FIRST if fixed + times * growing <= (1 - _HEADROOM) * room_bytes), 2)


def _trial(choice: Choice, verdict: Verdict, reason: str, speedup: float | None = None) -> LeverTrial:
    return LeverTrial(
        lever=BATCH_SIZE,
        safety="recipe",
        verdict=verdict,
        reason=reason,
        settings=choice.settings,
        measured_speedup=speedup,
    )


def _refusal(request: TuneRequest, baseline: Profile) -> str:
    if BATCH_SIZE not in request.allow:
        return BY_ID[BATCH_SIZE].check(JobFacts())
    if BATCH_SIZE in request.skip:
        return "left out by --skip"
    if request.goal != "throughput":
        return f"it serves throughput, not {request.goal}"
    if not batch_of(baseline) or not baseline.samples_per_s:
        return "how many samples reach the model is not known"
    return ""


def _rejected(trial: LeverTrial, why: str) -> LeverTrial:
    if trial.verdict != "kept":
        return trial
    return msgspec.structs.replace(trial, verdict="rejected", reason=why)


def _skipped(reason: str) -> LeverTrial:
    return LeverTrial(lever=BATCH_SIZE, safety="recipe", verdict="skipped", reason=reason)
