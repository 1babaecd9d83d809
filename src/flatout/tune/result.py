"""What tuning hands over, put together from what its stages found."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from flatout.levers.catalogue import BY_ID
from flatout.records.finding import Finding
from flatout.records.plan import Choice, Plan
from flatout.records.profile import Profile
from flatout.records.tuning import GuardEvidence, LeverTrial, Pace, Rung, Tuning
from flatout.records.words import memory_size, with_settings
from flatout.tune.batching import BATCH_SIZE
from flatout.tune.calibration import record
from flatout.tune.conclusions import UNEVEN, WORTH
from flatout.tune.confirming import NOT_CONFIRMED
from flatout.tune.fingerprints import fingerprint, places_of_the_user
from flatout.tune.limits import JOB_ENDED, OUT_OF_TIME, TOO_SHORT
from flatout.tune.pace import faster, gain
from flatout.tune.request import TuneRequest

# Two measures of the same plan that differ by more than this are worth a word.
_DISAGREE = 0.15
# A plan whose steps wait for data for more than this goes as fast as the loader.
WAITS = 0.05
_S_PER_HOUR = 3600


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """Everything that tuning hands over."""

    tuning: Tuning
    plan: Plan | None
    # Whether the user ended the search: the plan is the best until then.
    interrupted: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stages:
    """What the stages of a tuning found."""

    baseline: Profile
    as_written: Pace
    about: Mapping[str, Any]
    chosen: tuple[Choice, ...]
    # The share of a step under the plan in which the loop waits for data.
    input_wait: float
    # Whether levers took turns with batches that were made before, so that no arm ever waited for one.
    repeated: bool = False
    # The plan without a larger batch, and with it, each in a process of its own; None where there is none.
    confirmed: Pace | None
    with_batch: Pace | None
    guard: GuardEvidence
    ladder: Sequence[Rung]
    trials: Sequence[LeverTrial]
    compile_s: float
    took_s: float
    spent_s: Mapping[str, float]
    notes: tuple[str, ...]
    findings: tuple[Finding, ...] = ()
    interrupted: bool = False
    job_steps: int | None = None


def result_of(request: TuneRequest, run: str, stages: Stages) -> Found:
    """The document and the plan."""
    as_written, chosen = stages.as_written, stages.chosen
    notes = list(stages.notes)
    best, speedup = as_written, 1.0
    ladder: tuple[Rung, ...] = ()
    if stages.confirmed is not None:
        best, speedup, ladder = _best(stages, notes)
    ladder = tuple(_with_figures(rung, stages) for rung in ladder)
    if any(choice.id == "fp8" for choice in chosen) and stages.baseline.mfu.peak_dtype != "fp8":
        notes.append(f"every MFU is of the {stages.baseline.mfu.peak_dtype} peak, also beside fp8")
    trials = tuple(_as_in_the_plan(trial, ladder) for trial in stages.trials)
    plan = _plan(request, run, stages, ladder, best, speedup) if chosen else None
    saved_share = 1 - 1 / speedup
    spent_s = stages.took_s + stages.compile_s
    steps = round(spent_s / (saved_share * as_written.step_ms / 1000)) if speedup > 1 else None
    if steps is not None and stages.job_steps is not None and steps > stages.job_steps:
        runs = f"{steps / stages.job_steps:.1f} runs"
        notes.append(f"the job makes {stages.job_steps:,} updates: tuning is paid back after {runs} of it")
    gpus = len(stages.baseline.ranks) if (stages.baseline.device or "").startswith("cuda") else 0
    no_gpu = {"gpu_hours": "the job trains on no GPU", "break_even_gpu_hours": "the job trains on no GPU"}
    no_plan = {"plan": "nothing helped", "break_even_steps": "there is no plan"}
    tuning = Tuning(
        run=run,
        command=request.job.command.words,
        typed=request.job.command.typed() if request.job.command.given else "",
        device=stages.baseline.device_name or stages.baseline.device or "cpu",
        goal=request.goal,
        baseline=as_written,
        best=best,
        speedup=speedup,
        trials=trials,
        ladder=ladder,
        guard=stages.guard,
        tune_seconds=stages.took_s,
        spent_seconds=dict(stages.spent_s),
        summary=_summary(request, stages, best, speedup),
        break_even_steps=steps,
        gpu_hours=gpus * stages.took_s / _S_PER_HOUR if gpus else None,
        break_even_gpu_hours=gpus * spent_s / saved_share / _S_PER_HOUR if gpus and speedup > 1 else None,
        compile_seconds=stages.compile_s or None,
        calibration=record(trials, run, stages.baseline.device_name or ""),
        notes=tuple(notes),
        findings=stages.findings,
        unknown={
            **({} if chosen else no_plan),
            **({} if gpus else no_gpu),
            **({} if stages.compile_s else {"compile_seconds": "nothing was compiled"}),
        },
    )
    return Found(tuning=tuning, plan=plan, interrupted=stages.interrupted)


def _plan(
    request: TuneRequest, run: str, stages: Stages, ladder: Sequence[Rung], best: Pace, speedup: float
) -> Plan:
    habits = stages.about.get("habits") or {}
    job = fingerprint(request.job.command, stages.baseline, stages.about)
    return Plan(
        job=job,
        levers=tuple(_told(choice, ladder) for choice in stages.chosen),
        where=places_of_the_user(Path.cwd(), job.script, habits.get("where") or {}),
        infer=request.job.infer,
        run=run,
        baseline_samples_per_s=stages.as_written.samples_per_s,
        samples_per_s=best.samples_per_s,
        speedup=speedup,
        mfu=best.mfu,
    )


def _best(stages: Stages, notes: list[str]) -> tuple[Pace, float, tuple[Rung, ...]]:
    """By turns in one run is the better measure: the machine's moods cancel. Else what was confirmed."""
    as_written, confirmed = stages.as_written, stages.confirmed
    assert confirmed is not None
    alone = gain(as_written, confirmed)
    same_batch = [choice for choice in stages.chosen if choice.id != BATCH_SIZE]
    waits = stages.input_wait > WAITS
    by_loader = _gain_of_the_loader(stages, slowest_ms=confirmed.step_ms if waits else 0.0)
    ladder = _whole_ladder(stages.ladder, same_batch, as_written, by_loader)
    best, speedup = confirmed, alone
    if [rung.lever for rung in ladder] != [choice.words() for choice in same_batch]:
        ladder = ()  # the guard took a rung out, and the others were measured with it
    elif ladder:
        if waits and stages.ladder and alone < 0.99 * ladder[-1].speedup:
            # By turns no arm waited, or batches that waited while one arm was slow served the next.
            notes.append(
                f"{stages.input_wait:.0%} of a step under the plan waits for data: "
                f"the levers alone would allow {ladder[-1].speedup:.2f}x"
            )
        if waits or (stages.repeated and (by_loader or alone * (1 + _DISAGREE) < ladder[-1].speedup)):
            # Beside a loader that works, a plan may go slower than by turns with batches made before.
            ladder = capped(ladder, min(alone, ladder[-1].speedup))
        speedup = ladder[-1].speedup
        best = faster(as_written, speedup, confirmed)
        if abs(alone / speedup - 1) > _DISAGREE:
            notes.append(
                f"in a process of its own the plan was {alone:.2f}x as fast as the script; "
                f"by turns in one process {speedup:.2f}x, which is what counts"
            )
    if stages.with_batch is not None:
        more = gain(confirmed, stages.with_batch)
        speedup *= more
        name = next(choice.words() for choice in stages.chosen if choice.id == BATCH_SIZE)
        if ladder or not same_batch:
            # A step of the old size, at the new pace: so that one rung can be held against the other.
            rung = Rung(lever=name, step_ms=as_written.step_ms / speedup, gain=more, speedup=speedup)
            ladder = (*ladder, rung)
        as_measured = stages.with_batch
        best = dataclasses.replace(
            faster(as_written, speedup, as_measured), step_ms=as_measured.step_ms, unknown={}
        )
    return best, speedup, ladder


def _gain_of_the_loader(stages: Stages, slowest_ms: float) -> float | None:
    """What its settings give to the job as written, which never goes faster than the loader does."""
    loader = next((choice for choice in stages.chosen if choice.id == "loader"), None)
    if loader is None:
        return None
    if not stages.repeated or not stages.ladder:
        return loader.measured_speedup
    unheld_ms = stages.ladder[0].step_ms * stages.ladder[0].gain
    return max(1.0, stages.as_written.step_ms / max(unheld_ms, slowest_ms))


def _whole_ladder(
    ladder: Sequence[Rung], chosen: Sequence[Choice], as_written: Pace, by_loader: float | None
) -> tuple[Rung, ...]:
    """Every rung from the baseline up. The loader was measured in runs of its own: its rung is the lowest."""
    loader = next((choice for choice in chosen if choice.id == "loader"), None)
    by = by_loader or 1.0
    whole = [dataclasses.replace(rung, speedup=rung.speedup * by) for rung in ladder]
    if loader is not None and by_loader is not None:
        whole.insert(0, Rung(lever=loader.words(), step_ms=0.0, gain=by, speedup=by))
    # Times as of the baseline's own run: ratios are what was measured by turns.
    return tuple(dataclasses.replace(rung, step_ms=as_written.step_ms / rung.speedup) for rung in whole)


def capped(ladder: Sequence[Rung], most: float) -> tuple[Rung, ...]:
    """The rungs as far as the loader lets them go."""
    rungs, below = [], 1.0
    for rung in ladder:
        speedup = min(rung.speedup, most)
        step_ms = rung.step_ms * rung.speedup / speedup
        rungs.append(dataclasses.replace(rung, speedup=speedup, gain=speedup / below, step_ms=step_ms))
        below = speedup
    return tuple(rungs)


def _with_figures(rung: Rung, stages: Stages) -> Rung:
    """A rung with what was expected of it, and what the job does when it stands there."""
    predicted = {choice.words(): choice.predicted_speedup for choice in stages.chosen}
    rate, mfu = stages.as_written.samples_per_s, stages.as_written.mfu
    return dataclasses.replace(
        rung,
        predicted=predicted.get(rung.lever),
        samples_per_s=rate * rung.speedup if rate is not None else None,
        mfu=mfu * rung.speedup if mfu is not None else None,
    )


def _as_in_the_plan(trial: LeverTrial, ladder: Sequence[Rung]) -> LeverTrial:
    """A lever of the plan with what its rung shows: one number for one lever."""
    gains = {rung.lever: rung.gain for rung in ladder}
    gain = gains.get(with_settings(trial.lever, trial.settings))
    if gain is None or trial.verdict != "kept" or trial.lever == BATCH_SIZE:
        return trial
    return msgspec.structs.replace(
        trial, measured_speedup=gain, low=None, high=None, reason=f"{gain:.2f}x in the plan"
    )


def _told(choice: Choice, ladder: Sequence[Rung]) -> Choice:
    """A lever of the plan, with what it gave and why it is there."""
    gains = {rung.lever: rung.gain for rung in ladder}
    return dataclasses.replace(
        choice,
        measured_speedup=gains.get(choice.words(), choice.measured_speedup),
        reason=choice.reason or BY_ID[choice.id].title,
    )


def _could_be_more_than_chance(trial: LeverTrial) -> bool:
    """A lever that seemed to help, with an interval that says nothing."""
    seemed = trial.verdict == "rejected" and (trial.measured_speedup or 0.0) >= 1 + WORTH
    return seemed and trial.low is not None and trial.low < 1.0


# What levers did that did nothing, one of them and several.
_IN_VAIN = {
    "time": ("made the job no faster", "made the job faster"),
    "memory": ("made it take no less memory", "made it take less memory"),
}
# As limits say it.
_LEFT_OUT = "left out by"


def _summary(request: TuneRequest, stages: Stages, best: Pace, speedup: float) -> str:
    trials = stages.trials
    levers = ", ".join(choice.words() for choice in stages.chosen)
    if stages.chosen and request.goal == "memory" and best.peak_bytes and stages.as_written.peak_bytes:
        before, after = stages.as_written.peak_bytes, best.peak_bytes
        less = f"{memory_size(before)} -> {memory_size(after)} with {levers}"
        return f"{1 - after / before:.0%} less memory, {less}; {speedup:.2f}x as fast"
    if stages.chosen:
        return f"{speedup:.2f}x faster with {levers}"
    most, least = request.max_memory_bytes, stages.as_written.peak_bytes
    if most is not None and least is not None and least > most:
        takes = f"as written it takes {memory_size(least)}, and nothing that was tried makes it fit"
        return f"nothing within {memory_size(most)}: {takes}; `flatout fit` says what would"
    if stages.interrupted:
        return "ended by Ctrl-C before anything was found to help: --resume latest goes on from here"
    tried = [trial for trial in trials if trial.verdict in ("rejected", "failed", "unsafe")]
    late = sorted({trial.lever for trial in trials if trial.reason == OUT_OF_TIME})
    over = f"the time allowed was over before {', '.join(late)}" if late else ""
    failures = {trial.reason for trial in tried if trial.verdict == "failed"}
    by_turns = [trial for trial in tried if trial.lever != "loader"]
    if len(failures) == 1 and by_turns and all(trial.reason.endswith(TOO_SHORT) for trial in by_turns):
        return f"nothing could be tried: {failures.pop()}"
    faster_but_unsafe = [
        f"{trial.lever} {trial.measured_speedup:.2f}x"
        for trial in tried
        if trial.verdict == "unsafe" and (trial.measured_speedup or 0.0) > 1 + WORTH
    ]
    if faster_but_unsafe:
        return f"nothing that the guard lets pass: {', '.join(faster_but_unsafe)}, but not learning the same"
    if tried:
        count = (
            f"{len(tried)} levers were tried, none of which" if len(tried) > 1 else "1 lever was tried, which"
        )
        in_vain = _IN_VAIN["memory" if request.goal == "memory" else "time"]
        nothing = f"{count} {in_vain[len(tried) > 1]}"
        unconfirmed = [
            trial
            for trial in tried
            if trial.reason == NOT_CONFIRMED and (trial.measured_speedup or 0.0) >= 1 + WORTH
        ]
        if unconfirmed:
            names = ", ".join(f"{trial.lever} {trial.measured_speedup:.2f}x" for trial in unconfirmed)
            return f"nothing is certain: {names} by turns, {NOT_CONFIRMED}; a quieter machine tells"
        perhaps = [trial for trial in tried if _could_be_more_than_chance(trial)]
        if perhaps:
            names = ", ".join(f"{trial.lever} {trial.measured_speedup:.2f}x" for trial in perhaps)
            why = "steps vary too much for the time allowed: a longer --budget, or a quieter machine, tells"
            return f"nothing is certain: {names} could be chance; {why}"
        uneven = sorted({trial.lever for trial in tried if trial.reason == UNEVEN})
        if uneven:
            return f"nothing is certain: with {', '.join(uneven)} {UNEVEN.removeprefix('its ')}"
        return f"nothing gained: {nothing}; {over}" if over else f"nothing to gain: {nothing}"
    if over:
        return f"nothing gained: {over}"
    skipped = [trial for trial in trials if trial.verdict == "skipped"]
    ended = next((one.reason for one in skipped if one.reason.startswith(JOB_ENDED)), "")
    if ended:
        return f"nothing could be tried: {ended}; a job that goes on for longer can be tuned"
    reasons = [f"{one.lever}: {one.reason}" for one in skipped if not one.reason.startswith(_LEFT_OUT)]
    others = len(skipped) - len(reasons)
    reasons += [f"{others} {_LEFT_OUT} --only or --skip"] if others else []
    return f"nothing to gain: no lever applies ({'; '.join(reasons)})"
