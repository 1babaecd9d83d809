"""Room for a plan that takes more memory than it may: computing again or sending away, as needed."""

import dataclasses
from collections.abc import Callable

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
) -> Room:
    """Ways in the order of their cost, until two fit; the faster of these.

    Of what is done to a share of the model, just as much as is needed: two points tell how much that is.
    """
    trials: list[LeverTrial] = []
    fitting: list[tuple[tuple[Choice, ...], Measured, Pace, Choice]] = []
    waiting = list(_WAYS)
    while waiting and len(fitting) < _COMPARED:
        way = waiting.pop(0)
        if left_out(way.id) or not _suits(way, chosen, job):
            continue
        predicted = BY_ID[way.id].predict(job, way.settings)
        together = ordered((*chosen, dataclasses.replace(way, predicted_speedup=predicted)))
        measured = measure(f"memory with {way.words()}", together)
        pace = measured.pace
        if pace is None or pace.peak_bytes is None:
            trials.append(_trial(way, "failed", f"the run ended as {measured.outcome!r}", predicted, None))
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
        return Room(chosen, now, tuple(trials))
    best = min(fitting, key=lambda one: one[2].step_ms)
    final = [
        msgspec.structs.replace(trial, verdict="rejected", reason=f"{trial.reason}, but slower")
        if trial.verdict == "kept" and (trial.lever, trial.settings) != (best[3].id, best[3].settings)
        else trial
        for trial in trials
    ]
    return Room(best[0], best[1], tuple(final), f"{best[3].words()} makes it fit")


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
