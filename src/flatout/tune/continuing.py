"""The guard's trajectory, continued: do the first steps of the real job go as they went while tuning?

Tuning saw the job as written for a few hundred steps, and twins of it, changed by a rounding, for thirty. A
job that seeds itself begins with the same parameters and data each time: its losses can be held against both,
step by step. Any other can only be held against their level.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Any

from flatout.records.running import Continued
from flatout.tune.guard_runs import Losses
from flatout.tune.journal import FIRST_STEPS, SeenLosses
from flatout.tune.trajectory import judge_trajectory

# Losses whose levels are further apart than this were not drawn from the same.
_STANDARD_ERRORS = 4.0
_ANOTHER_START = 0.25
_FEWEST = 8
_ROOM = 4.0
# Kernels that add in no fixed order differ by themselves, a little more with each step.
_EXACT = 1e-3


def judge_first_steps(losses: Losses, seen: SeenLosses | None, pairing: dict[str, Any]) -> Continued:
    """The first steps of a run, against what tuning saw."""
    first = list(losses[:FIRST_STEPS])
    broken = next(
        (n for n, loss in enumerate(first, 1) if loss is not None and not math.isfinite(loss)), None
    )
    if broken is not None and (seen is None or _was_finite(seen.as_written[:broken])):
        return Continued(verdict="left", steps=broken, reason=f"the loss of step {broken} is not finite")
    if seen is None:
        return Continued(
            verdict="unknown", steps=len(first), reason="what tuning saw is not here: its run folder is gone"
        )
    if _is_same(seen.pairing, pairing):
        found = _paired(first, seen)
        # Under levers that change numbers, other elements may be dropped: then losses differ by more.
        if found.verdict == "inside" or not (seen.draws and seen.twins):
            return found
    return _by_level(first, seen.as_written)


def _paired(first: Losses, seen: SeenLosses) -> Continued:
    if not seen.twins:
        return _exact(first, seen.as_written)
    evidence, problem = judge_trajectory(seen.as_written, seen.twins, first, seen.roundoff)
    if problem:
        return Continued(verdict="left", steps=evidence["steps"], paired=True, reason=problem)
    beyond = _beyond_the_twins(first, seen, int(evidence["steps"]), float(evidence.get("twins_apart", 0.0)))
    if beyond is not None:
        return beyond
    count = sum(a is not None and b is not None for a, b in zip(first, seen.as_written, strict=False))
    return Continued(
        verdict="inside",
        steps=count,
        paired=True,
        reason="losses are as close to those as written as rounding would put them",
    )


def _exact(first: Losses, as_written: Losses) -> Continued:
    """A plan that changes no number was proven without twins: losses must be those as written."""
    both = zip(first, as_written, strict=False)
    pairs = [(got, expected) for got, expected in both if got is not None and expected is not None]
    off = next((n for n, (got, expected) in enumerate(pairs, 1) if not _is_near(got, expected)), None)
    if off is not None:
        got, expected = pairs[off - 1]
        reason = f"the loss of step {off} is {got:.6g}, as written {expected:.6g}, and nothing should differ"
        return Continued(verdict="left", steps=off, paired=True, reason=reason)
    return Continued(verdict="inside", steps=len(pairs), paired=True, reason="losses are those as written")


def _is_near(got: float, expected: float) -> bool:
    return abs(got - expected) <= _EXACT * max(1e-12, abs(expected))


def _beyond_the_twins(first: Losses, seen: SeenLosses, known: int, apart: float) -> Continued | None:
    """After the last step that twins made, their distance is taken to go on growing as it grew."""
    pairs = [
        (number, got, expected)
        for number, (got, expected) in enumerate(zip(first, seen.as_written, strict=False), 1)
        if got is not None and expected is not None and number > known
    ]
    if not pairs or not known:
        return None
    last = pairs[-1][0]
    expected_rms = math.sqrt(statistics.fmean((got - expected) ** 2 for _, got, expected in pairs))
    scale = statistics.fmean(abs(expected) for *_, expected in pairs)
    allowed = _ROOM * apart * last / known + 2 * seen.roundoff * scale
    if expected_rms <= allowed:
        return None
    reason = (
        f"losses of steps {known + 1} to {last} are {expected_rms:.3g} from those as written; "
        f"rounding explains {allowed:.3g}"
    )
    return Continued(verdict="left", steps=last, paired=True, reason=reason)


def _by_level(first: Losses, as_written: Losses) -> Continued:
    got, expected = _known(first), _known(as_written)
    count = min(len(got), len(expected))
    if count < _FEWEST:
        return Continued(verdict="unknown", steps=count, reason="too few losses were seen to compare them")
    a, b = got[:count], expected[:count]
    error = math.sqrt((statistics.pvariance(a) + statistics.pvariance(b)) / count)
    off, level = statistics.fmean(a) - statistics.fmean(b), abs(statistics.fmean(b))
    # Another start alone can move the level by some of itself; how much, nobody has measured.
    if abs(off) > _STANDARD_ERRORS * error + _ANOTHER_START * level:
        reason = (
            f"losses lie {off:+.3g} from those as written ({level:.3g}); another start hardly explains it"
        )
        return Continued(verdict="left", steps=count, reason=reason)
    reason = "losses lie at the level of those as written (other data or random numbers: weakly shown)"
    return Continued(verdict="inside", steps=count, reason=reason)


def _is_same(first: dict[str, Any], second: dict[str, Any]) -> bool:
    if not first.get("inputs") or not second.get("inputs") or not first.get("parameters"):
        return False
    return bool(
        first["parameters"] == second.get("parameters") and first["inputs"][0][1] == second["inputs"][0][1]
    )


def _known(losses: Losses) -> list[float]:
    return [loss for loss in losses if loss is not None]


def _was_finite(losses: Sequence[float | None]) -> bool:
    return all(loss is None or math.isfinite(loss) for loss in losses)
