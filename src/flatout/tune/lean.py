"""A plan for less memory."""

import time
from collections.abc import Callable, Sequence

from flatout.levers.catalogue import BY_ID
from flatout.records.plan import Choice
from flatout.records.tuning import ENDED_BY_CTRL_C, Pace
from flatout.records.words import memory_size
from flatout.tune.arms import ArmResult
from flatout.tune.combining import conflict, ordered
from flatout.tune.conclusions import Conclusions
from flatout.tune.limits import OUT_OF_TIME
from flatout.tune.measuring import Measurer
from flatout.tune.pace import Measured

# It may cost so much time, and each lever must save so much memory.
_SLOWER_AT_MOST = 0.05
_LESS_AT_LEAST = 0.01


def lean(
    conclusions: Conclusions,
    candidates: Sequence[Choice],
    measurer: Measurer,
    deadline: float,
    as_written: Pace,
    on_ctrl_c: Callable[[], None],
) -> tuple[tuple[Choice, ...], Measured | None]:
    """For less memory: each lever in a process of its own, kept where the peak falls; until Ctrl-C."""
    # What is made for it first: there may be no time for all.
    candidates = sorted(candidates, key=lambda one: BY_ID[one.id].safety != "memory")
    best = as_written
    found: tuple[Choice, ...] = ()
    last: Measured | None = None
    for choice in candidates:
        if choice in found:  # it came with what needs it
            continue
        if time.monotonic() > deadline:
            conclusions.conclude(choice, "skipped", OUT_OF_TIME)
            continue
        if any(one.id == choice.id or conflict(one, choice) for one in found):
            conclusions.conclude(choice, "skipped", "another setting of it, or what conflicts with it, is in")
            continue
        needed = _needed(choice, found, candidates)
        if needed is None:
            reason = f"it does nothing without {' and '.join(BY_ID[choice.id].needs)}, which cannot be tried"
            conclusions.conclude(choice, "skipped", reason)
            continue
        together = ordered((*found, *needed, choice))
        try:
            measured = measurer.measure(f"memory with {choice.words()}", together, as_written)
        except KeyboardInterrupt:
            conclusions.leave_out(candidates, ENDED_BY_CTRL_C)
            on_ctrl_c()
            break
        pace = measured.pace
        if pace is None:
            conclusions.conclude(choice, "failed", measured.ending)
            continue
        if pace.peak_bytes is None or best.peak_bytes is None:
            conclusions.conclude(choice, "skipped", "how much memory the job takes is not known here")
            continue
        less, speed = 1 - pace.peak_bytes / best.peak_bytes, as_written.step_ms / pace.step_ms
        alone = best.step_ms / pace.step_ms
        words = f"{memory_size(best.peak_bytes)} -> {memory_size(pace.peak_bytes)}"
        measured_result = ArmResult(step_ms=pace.step_ms, speedup=alone)
        if less < _LESS_AT_LEAST:
            conclusions.conclude(choice, "rejected", f"{words}: no less", measured_result, found)
        elif speed < 1 - _SLOWER_AT_MOST:
            conclusions.conclude(
                choice, "rejected", f"{words}, but the plan at {speed:.2f}x", measured_result, found
            )
        else:
            conclusions.conclude(choice, "kept", f"{less:.0%} less: {words}", measured_result, found)
            for one in needed:
                conclusions.conclude(one, "kept", f"for {choice.words()}", on_top_of=found)
            best, found, last = pace, together, measured
    return found, last


def _needed(choice: Choice, found: Sequence[Choice], candidates: Sequence[Choice]) -> list[Choice] | None:
    """What must come on with it and is not on; None where that is not to be had."""
    missing = [name for name in BY_ID[choice.id].needs if all(one.id != name for one in found)]
    plain = [next((one for one in candidates if one.id == name), None) for name in missing]
    chosen = [one for one in plain if one is not None]
    return chosen if len(chosen) == len(missing) else None
