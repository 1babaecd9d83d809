"""Room for a plan that takes more memory than it may: computing again or sending away, as needed."""

import dataclasses
import math
import time
from collections.abc import Callable, Iterable

import msgspec

from flatout.levers.catalogue import BY_ID
from flatout.levers.job import JobFacts
from flatout.records.plan import Choice
from flatout.records.tuning import LeverTrial, Pace, Verdict
from flatout.records.words import memory_size
from flatout.tune.combining import conflict, ordered
from flatout.tune.pace import Measured

# From what costs least to what saves most; the compiler's own choice first, where it compiles.
_WAYS = (
    Choice(id="activation-budget", settings={"budget": 0.5}),
    Choice(id="activation-budget", settings={"budget": 0.2}),
    Choice(id="block-checkpointing", settings={"share": 0.5}),
    Choice(id="hf-checkpointing"),
    Choice(id="activation-offload", settings={"share": 0.5}),
    Choice(id="optimizer-offload"),
)
# What takes less and costs no time to speak of comes first, at once, and stays below the ways.
_FREE_WAYS = (Choice(id="allocator"), Choice(id="linear-cross-entropy"))
_SLOWER_AT_MOST = 0.03
_LESS_AT_LEAST = 0.01
# A way that fits may be slower than the next one: so many that fit are held against each other.
_COMPARED = 2
# Of the budget, what stays free where a share is worked out; and by how much it must differ to be tried.
_FREE = 0.03
_ANOTHER_SHARE = 0.1

Measure = Callable[[str, tuple[Choice, ...]], Measured]


@dataclasses.dataclass(frozen=True)
class Room:
    """A plan that fits, or the plan as it was; and what became of each way."""

    chosen: tuple[Choice, ...]
    measured: Measured | None
    trials: tuple[LeverTrial, ...]
    note: str = ""


def make_room(
    chosen: tuple[Choice, ...],
    now: Measured,
    most_bytes: int,
    job: JobFacts,
    left_out: Callable[[str], bool],
    measure: Measure,
    deadline: float = math.inf,
) -> Room:
    """What costs nothing, then ways in the order of their cost, until two fit; the faster of these.

    After the deadline, the first one that fits: room was asked for by name, and is not given up for time.

    Of what is done to a share of the model, just as much as is needed: two points tell how much that is.
    """
    as_it_was = chosen, now
    chosen, now, trials = _for_free(chosen, now, job, left_out, measure)
    if trials and now.pace is not None and (now.pace.peak_bytes or most_bytes + 1) <= most_bytes:
        return Room(chosen, now, tuple(trials), f"{_names(trials)} makes it fit")
    fitting: list[tuple[tuple[Choice, ...], Measured, Pace, Choice]] = []
    waiting = list(_WAYS)
    while waiting and len(fitting) < _COMPARED:
        if fitting and time.monotonic() > deadline:
            break
        way = waiting.pop(0)
        if left_out(way.id) or not _suits(way, chosen, job):
            continue
        predicted = BY_ID[way.id].predict(job, way.settings)
        together = ordered((*chosen, dataclasses.replace(way, predicted_speedup=predicted)))
        measured = measure(f"memory with {way.words()}", together)
        pace = measured.pace
        if pace is None or pace.peak_bytes is None:
            trials.append(_trial(way, "failed", measured.ending, predicted, None))
            if way in _WAYS and "share" in way.settings:  # half of it may have been too little to run at all
                waiting = [dataclasses.replace(way, settings={**way.settings, "share": 1.0}), *waiting]
            continue
        cost = now.pace.step_ms / pace.step_ms if now.pace is not None else None
        words = f"{memory_size(pace.peak_bytes)} of {memory_size(most_bytes)}"
        if pace.peak_bytes > most_bytes:
            trials.append(_trial(way, "rejected", f"{words}: still too much", predicted, cost))
        else:
            fitting.append((together, measured, pace, way))
            trials.append(_trial(way, "kept", words, predicted, cost))
        if way in _WAYS and now.pace is not None and now.pace.peak_bytes is not None:
            waiting = [*_just_enough(way, now.pace.peak_bytes, pace.peak_bytes, most_bytes), *waiting]
    if not fitting:
        note = f"nothing that was tried fits into {memory_size(most_bytes)}"
        return Room(*as_it_was, tuple(_rejected(trial, "not enough") for trial in trials), note)
    best = min(fitting, key=lambda one: one[2].step_ms)
    taken = {(choice.id, str(choice.settings)) for choice in best[0]}
    final = [
        trial if (trial.lever, str(trial.settings)) in taken else _rejected(trial, "but slower")
        for trial in trials
    ]
    return Room(best[0], best[1], tuple(final), f"{best[3].words()} makes it fit")


def _for_free(
    chosen: tuple[Choice, ...],
    now: Measured,
    job: JobFacts,
    left_out: Callable[[str], bool],
    measure: Measure,
) -> tuple[tuple[Choice, ...], Measured, list[LeverTrial]]:
    """The plan with what takes less at no cost, and how it goes then; as it was where there is nothing."""
    # In the room that there is, the allocator would have to start over.
    tight = dataclasses.replace(job, habits={**job.habits, "allocation_retries": 1})
    free = [way for way in _FREE_WAYS if not left_out(way.id) and _suits(way, chosen, tight)]
    if not free or now.pace is None or now.pace.peak_bytes is None:
        return chosen, now, []
    together = ordered((*chosen, *free))
    found = measure(f"memory with {', '.join(way.words() for way in free)}", together)
    pace = found.pace
    if pace is None or pace.peak_bytes is None:
        return (
            chosen,
            now,
            [_trial(way, "failed", found.ending, 1, None) for way in free],
        )
    speed = now.pace.step_ms / pace.step_ms
    words = f"{memory_size(now.pace.peak_bytes)} -> {memory_size(pace.peak_bytes)}"
    is_worth_it = pace.peak_bytes < (1 - _LESS_AT_LEAST) * now.pace.peak_bytes and speed > 1 - _SLOWER_AT_MOST
    trials = [_trial(way, "kept" if is_worth_it else "rejected", words, 1, speed) for way in free]
    return (together, found, trials) if is_worth_it else (chosen, now, trials)


def _names(trials: Iterable[LeverTrial]) -> str:
    return ", ".join(trial.lever for trial in trials)


def _rejected(trial: LeverTrial, why: str) -> LeverTrial:
    if trial.verdict != "kept":
        return trial
    return msgspec.structs.replace(trial, verdict="rejected", reason=f"{trial.reason}, {why}")


def _just_enough(way: Choice, without: int, with_it: int, most: int) -> list[Choice]:
    """The same with the share that is needed: memory falls in proportion to it. None where it is no other."""
    share = way.settings.get("share")
    if share is None or with_it >= without:
        return []
    needed = share * (without - (1 - _FREE) * most) / (without - with_it)
    if abs(needed - share) < _ANOTHER_SHARE or needed > 1 + _ANOTHER_SHARE:
        return []
    return [dataclasses.replace(way, settings={**way.settings, "share": min(1.0, round(needed + 0.005, 2))})]


def _suits(way: Choice, chosen: tuple[Choice, ...], job: JobFacts) -> bool:
    lever = BY_ID[way.id]
    on = {choice.id for choice in chosen}
    if way.id in on or any(conflict(way, choice) for choice in chosen) or lever.check(job):
        return False
    return all(needed in on for needed in lever.needs)


def _trial(
    way: Choice, verdict: Verdict, reason: str, predicted: float, measured: float | None
) -> LeverTrial:
    return LeverTrial(
        lever=way.id,
        safety=BY_ID[way.id].safety,
        settings=way.settings,
        verdict=verdict,
        reason=reason,
        predicted_speedup=predicted,
        measured_speedup=measured,
    )
