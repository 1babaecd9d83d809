"""A larger batch on top of a plan, where the user allows that."""

import dataclasses

import msgspec

from flatout.levers.catalogue import BY_ID
from flatout.levers.job import JobFacts
from flatout.records.plan import Choice
from flatout.records.profile import Profile
from flatout.records.tuning import LeverTrial, Pace
from flatout.records.words import memory_size
from flatout.tune.batching import BATCH_SIZE, as_trials, climb, consequence
from flatout.tune.measuring import Measurer
from flatout.tune.pace import gain
from flatout.tune.request import TuneRequest
from flatout.tune.search import WORTH


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
    uncompiled: Pace | None,
    deadline: float,
) -> LargerBatch:
    """A larger batch, where the user allows that: on top of the plan, up to the knee of throughput.

    `uncompiled`: the pace of the plan without the compiler, where it is known.
    """
    refusal = _refusal(measurer.request, baseline)
    if refusal:
        return LargerBatch(trials=[_skipped(refusal)])
    size = round((baseline.samples_per_step or 0) / max(1.0, baseline.micro_batches))
    # Compiling for each size would take minutes: sizes are compared without, and the choice is confirmed.
    light = tuple(one for one in chosen if one.id != "compile")
    base_pace = now
    if light != chosen:
        base_pace = uncompiled or measurer.measure("batch size: as it is", light, now).pace or now

    samples_per_step: dict[str, float] = {}

    def measure(choice: Choice) -> tuple[Pace | None, float | None, str]:
        found = measurer.measure(choice.words(), (*light, choice), now)
        if found.pace is None or found.profile is None or found.profile.samples_per_step is None:
            return None, None, f"the run ended as {found.outcome!r}"
        if measurer.is_too_large(found.pace):
            return None, None, f"{memory_size(found.pace.peak_bytes or 0)}: more than --max-memory"
        samples = found.profile.samples_per_step / max(1.0, found.profile.micro_batches)
        samples_per_step[choice.words()] = found.profile.samples_per_step
        return found.pace, samples, ""

    room = measurer.request.max_memory_bytes or baseline.memory.device_total_bytes
    choice, tried, reason = climb(measurer.request.job.command, size, base_pace, room, measure, deadline)
    trials = as_trials(tried, choice, base_pace, reason)
    if choice is None:
        return LargerBatch(trials=trials or [_skipped(reason)])
    whole = measurer.measure(f"the plan with {choice.words()}", (*chosen, choice), now).pace
    if whole is None or measurer.is_too_large(whole) or gain(now, whole) < 1 + WORTH:
        why = "with the whole plan a larger batch was no faster"
        return LargerBatch(trials=[_rejected(trial) for trial in trials], note=why)
    times = samples_per_step[choice.words()] / (baseline.samples_per_step or 1.0)
    told = consequence(choice, times)
    measured = dataclasses.replace(choice, measured_speedup=gain(now, whole), reason=told)
    kept = [
        msgspec.structs.replace(trial, measured_speedup=measured.measured_speedup)
        if trial.verdict == "kept"
        else trial
        for trial in trials
    ]
    return LargerBatch(trials=kept, choice=measured, pace=whole, note=told)


def _refusal(request: TuneRequest, baseline: Profile) -> str:
    if BATCH_SIZE not in request.allow:
        return BY_ID[BATCH_SIZE].check(JobFacts())
    if BATCH_SIZE in request.skip:
        return "left out by --skip"
    if request.goal != "throughput":
        return f"it serves throughput, not {request.goal}"
    if not baseline.samples_per_step or not baseline.samples_per_s:
        return "how many samples reach the model is not known"
    return ""


def _rejected(trial: LeverTrial) -> LeverTrial:
    return msgspec.structs.replace(trial, verdict="rejected") if trial.verdict == "kept" else trial


def _skipped(reason: str) -> LeverTrial:
    return LeverTrial(lever=BATCH_SIZE, safety="recipe", verdict="skipped", reason=reason)
