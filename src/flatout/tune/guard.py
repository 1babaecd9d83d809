"""The guard: does the job learn the same under a plan as it does as written?

A band around losses is not enough: halved gradients move a small model's loss less than honest rounding does.
So the first updates are compared parameter by parameter, from equal parameters, batch and random numbers, and
the measure of what rounding alone does is taken from twins of the baseline whose parameters were changed by
just that much before the first step.
"""

import dataclasses
import math
from collections.abc import Sequence

from flatout.records.tuning import GuardEvidence
from flatout.tune.guard_runs import GuardRun, is_paired, known_losses
from flatout.tune.same_state import same_state
from flatout.tune.trajectory import judge_levels, judge_trajectory

# Twins start from parameters that differ by a roundoff each: their first losses lie within so many of them,
# or within this share.
_ROUNDOFFS_APART, _LEAST_APART = 16.0, 1e-3


def judge(
    reference: GuardRun,
    twins: Sequence[GuardRun],
    candidate: GuardRun,
    *,
    roundoff: float,
    exact: bool = False,
    resampled: bool = False,
) -> GuardEvidence:
    """Whether the candidate learns what the reference learns; `resampled`: it may draw other samples."""
    if candidate.failed or reference.failed:
        reason = candidate.failed or f"of the baseline: {reference.failed}"
        return GuardEvidence(verdict="unsafe", paired=False, reason=f"nothing to compare: {reason}")
    curves = {
        "as written": list(reference.losses),
        **{f"twin {number + 1}": list(twin.losses) for number, twin in enumerate(twins)},
        "plan": list(candidate.losses),
    }
    if any(loss is not None and not math.isfinite(loss) for loss in candidate.losses) and all(
        loss is None or math.isfinite(loss) for loss in reference.losses
    ):
        return GuardEvidence(verdict="unsafe", paired=False, reason="a loss is not finite", curves=curves)
    paired = is_paired(reference, candidate, twins)
    if not paired and not resampled and all(is_paired(reference, twin, twins) for twin in twins):
        reason = "the model got other parameters or inputs than as written, where equal runs get the same"
        return GuardEvidence(verdict="unsafe", paired=False, reason=reason, curves=curves)
    if not paired:
        return judge_levels(reference, twins, candidate, curves)
    apart = _twins_apart(reference, twins, roundoff)
    if apart:
        levels = judge_levels(reference, twins, candidate, curves)
        if levels.verdict != "weak":
            return levels
        reason = f"the script is not deterministic: {apart}; the losses lie at the same level"
        return dataclasses.replace(levels, reason=reason)
    if exact and (same := bit_for_bit(reference, candidate)) is not None:
        return dataclasses.replace(same, curves=curves)
    evidence, problem = same_state(reference, twins, candidate, roundoff)
    trajectory, drift = judge_trajectory(
        reference.losses, [twin.losses for twin in twins], candidate.losses, roundoff
    )
    problem = problem or drift
    return GuardEvidence(
        verdict="unsafe" if problem else "same",
        paired=True,
        reason=problem or _all_is_well(reference),
        same_state=evidence,
        trajectory=trajectory,
        curves=curves,
    )


def _twins_apart(reference: GuardRun, twins: Sequence[GuardRun], roundoff: float) -> str:
    """What tells that equal runs differ by more than rounding; nothing where none does.

    Else whatever the script draws from the clock would widen the band until anything fits.
    """
    expected = reference.losses[0] if reference.losses else None
    firsts = [twin.losses[0] for twin in twins if twin.losses and twin.losses[0] is not None]
    if expected is None or not firsts:
        return ""
    furthest = max(firsts, key=lambda loss: abs(loss - expected))
    seen = [abs(loss) for loss in known_losses(reference.losses) if math.isfinite(loss)]
    scale = max([abs(expected), *seen])
    if not abs(furthest - expected) > max(_LEAST_APART, _ROUNDOFFS_APART * roundoff) * scale:
        return ""
    return f"from equal beginnings the first loss was {expected:.4g} and {furthest:.4g}"


def _all_is_well(reference: GuardRun) -> str:
    what = "outputs" if reference.infers else "gradients, updates and losses"
    return f"{what} are as close to the baseline's as rounding alone would put them"


def bit_for_bit(reference: GuardRun, candidate: GuardRun) -> GuardEvidence | None:
    """The evidence where both began alike and every loss is the same; None where that is not so."""
    if reference.failed or candidate.failed or not is_paired(reference, candidate):
        return None
    if known_losses(reference.losses) != known_losses(candidate.losses) or not known_losses(reference.losses):
        return None
    curves = {"as written": list(reference.losses), "plan": list(candidate.losses)}
    reason = f"{'outputs' if reference.infers else 'losses'} are the same, bit for bit"
    return GuardEvidence(verdict="same", paired=True, reason=reason, curves=curves)
