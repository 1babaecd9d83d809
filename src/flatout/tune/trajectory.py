"""Part two of the guard: the losses of some dozens of steps, or their levels where the data differed."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

from flatout.records.tuning import GuardEvidence
from flatout.tune.guard_runs import GuardRun, Losses, known_losses

_TRAJECTORY_TIMES = 4.0
# Where only levels can be compared: fewer steps say nothing, and so many standard errors are too many.
_FEWEST_LEVELS = 8
_LEVELS_APART = 4.0


def judge_trajectory(
    reference: Losses, twins: Sequence[Losses], candidate: Losses, roundoff: float
) -> tuple[dict[str, Any], str]:
    """How far the candidate's losses are from the reference's, and what is wrong with that, or nothing."""
    if not twins:
        return {"steps": 0}, ""
    # Steps whose loss every run has told.
    whole = [step for step in zip(reference, candidate, *twins, strict=False) if None not in step]
    count = len(whole)
    if count < 3:
        return {"steps": count}, ""
    expected, got, *others = ([float(value or 0.0) for value in run] for run in zip(*whole, strict=True))
    scale = statistics.fmean(abs(value) for value in expected)
    floor = 2 * roundoff * scale
    apart = _rms(got, expected)
    spread = max(_rms(other, expected) for other in others)
    allowed = _TRAJECTORY_TIMES * spread + floor
    evidence = {"steps": count, "apart": apart, "twins_apart": spread, "allowed": allowed}
    if not apart <= allowed:  # nor where a twin has no number
        return (
            evidence,
            f"over {count} steps losses are {apart:.3g} from the baseline's; rounding explains {allowed:.3g}",
        )
    return evidence, ""


def judge_levels(
    reference: GuardRun,
    twins: Sequence[GuardRun],
    candidate: GuardRun,
    curves: dict[str, list[float | None]],
) -> GuardEvidence:
    """Runs that did not see the same cannot be compared step by step: only their levels can.

    How far levels lie apart by themselves is what the runs as written show: each has a start of its own.
    """
    as_written = [known_losses(run.losses) for run in (reference, *twins)]
    got = known_losses(candidate.losses)
    count = min(len(got), *map(len, as_written))
    if count < _FEWEST_LEVELS:
        reason = "the runs did not see the same data, and made too few steps to compare their levels"
        return GuardEvidence(verdict="unsafe", paired=False, reason=reason, curves=curves)
    levels = [statistics.fmean(losses[:count]) for losses in as_written]
    within = (statistics.pvariance(as_written[0][:count]) + statistics.pvariance(got[:count])) / count
    between = statistics.variance(levels) * (1 + 1 / len(levels)) if len(levels) > 1 else 0.0
    error = math.sqrt(within + between) or 1e-12
    apart = (statistics.fmean(got[:count]) - statistics.fmean(levels)) / error
    evidence = {"steps": count, "standard_errors_apart": apart, "level_of_runs_as_written": levels}
    if abs(apart) > _LEVELS_APART:
        reason = (
            f"losses lie {apart:.1f} standard errors from the baseline's (the runs did not see the same data)"
        )
        return GuardEvidence(
            verdict="unsafe", paired=False, reason=reason, trajectory=evidence, curves=curves
        )
    reason = "the runs did not see the same data; their losses lie at the same level"
    return GuardEvidence(verdict="weak", paired=False, reason=reason, trajectory=evidence, curves=curves)


def _rms(a: Sequence[float], b: Sequence[float]) -> float:
    return math.sqrt(statistics.fmean((x - y) ** 2 for x, y in zip(a, b, strict=True)))


def without_numbers(losses: Sequence[float | None]) -> str:
    """What to say of losses that are no numbers any more; nothing where all are."""
    broken = next(
        (at for at, loss in enumerate(losses) if loss is not None and not math.isfinite(loss)), None
    )
    return f"the loss of update {broken + 1} is not finite" if broken is not None else ""


def last_losses(reference: Sequence[float | None], candidate: Sequence[float | None]) -> dict[str, float]:
    """The mean losses of both over the last third of the updates that both have seen."""
    pairs = [(a, b) for a, b in zip(reference, candidate, strict=False) if a is not None and b is not None]
    last = pairs[-max(1, len(pairs) // 3) :]
    if not last:
        return {}
    return {
        "steps": float(len(pairs)),
        "as_written": statistics.fmean(a for a, _ in last),
        "allowed": statistics.fmean(b for _, b in last),
    }
