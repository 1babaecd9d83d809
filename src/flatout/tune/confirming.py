"""The plan in a process of its own, beside the job as written: what was found by turns holds there too."""

import dataclasses

from flatout.records.plan import Choice
from flatout.records.tuning import Pace
from flatout.records.words import memory_size
from flatout.tune.conclusions import WORTH
from flatout.tune.measuring import Measurer
from flatout.tune.pace import Measured, fastest, gain, input_wait

NOT_CONFIRMED = "not confirmed in a process of its own"
# From run to run a machine that does other work, too, differs by so much.
_CLEAR_GAIN = 1.15


@dataclasses.dataclass(frozen=True)
class Confirmed:
    """What is left of a plan, and how it goes; nothing where it is no better than the job as written."""

    chosen: tuple[Choice, ...]
    pace: Pace | None
    # Of a step under the plan.
    input_wait: float
    notes: tuple[str, ...] = ()
    # The job as written beside it, where that was measured once more.
    as_written: Pace | None = None
    # Why nothing is left of it, where nothing is.
    why: str = ""


def confirm(
    measurer: Measurer, chosen: tuple[Choice, ...], as_written: Pace, known: Measured | None = None
) -> Confirmed:
    """Measure the plan, unless that is `known`; again where it seems to be no faster."""
    measured = known or measurer.measure("confirming the plan", chosen, as_written)
    notes: list[str] = []
    why = NOT_CONFIRMED
    while measured.pace is not None and measurer.is_too_large(measured.pace) and chosen:
        size = memory_size(measured.pace.peak_bytes or 0)
        notes.append(f"{size} is more than --max-memory: without {chosen[-1].words()}")
        why = f"the plan takes {size}: more than --max-memory"
        chosen = _lighter(chosen)
        if chosen:
            measured = measurer.measure("with less memory", chosen, as_written)
    pace, waits = measured.pace, input_wait(measured)
    if chosen and pace is None:
        why = f"under the plan {measured.ending}"
        notes.append(f"the plan could not be confirmed: {why}")
    elif chosen and pace is not None:
        # A plan that is to fit is worth its time.
        fits = measurer.request.goal == "memory" or measurer.is_too_large(as_written)
        if fits or gain(as_written, pace) >= (_CLEAR_GAIN if _by_runs_alone(chosen) else 1 + WORTH):
            return Confirmed(chosen, pace, waits, tuple(notes))
        before, after, note = _once_more(measurer, chosen, as_written, pace)
        if after is not None:
            return Confirmed(chosen, after, waits, (*notes, *filter(None, [note])), before)
        notes.append(note)
    return Confirmed((), None, waits, tuple(notes), why=why)


def _by_runs_alone(chosen: tuple[Choice, ...]) -> bool:
    """Whether nothing of a plan was compared by turns: its runs are minutes apart."""
    return all(one.id == "loader" for one in chosen)


def _once_more(
    measurer: Measurer, chosen: tuple[Choice, ...], as_written: Pace, pace: Pace
) -> tuple[Pace | None, Pace | None, str]:
    """The baseline ran minutes ago, and other work may have come and gone since: each of them again."""
    now = measurer.measure("as written, once more", (), as_written).pace
    if now is not None and gain(now, pace) >= 1 + WORTH:
        if gain(as_written, pace) >= 1 + WORTH:
            return fastest(as_written, now), pace, ""
        return now, pace, "the machine became slower while tuning: other work runs on it"
    again = measurer.measure("the plan, once more", chosen, as_written).pace
    if now is not None and again is not None:
        before, after = fastest(as_written, now), fastest(pace, again)
        if gain(before, after) >= 1 + WORTH:
            note = "other work on this machine slowed some of the runs: the fastest of each count"
            return before, after, note
    return None, None, "in a process of its own the plan was no faster, so there is none"


def _lighter(chosen: tuple[Choice, ...]) -> tuple[Choice, ...]:
    """Without what takes memory for speed: CUDA graphs first, then the last lever."""
    last = chosen[-1]
    if last.id == "compile" and last.settings.get("mode") != "default":
        return (*chosen[:-1], dataclasses.replace(last, settings={"mode": "default"}))
    return chosen[:-1]
