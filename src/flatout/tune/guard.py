"""The guard: does the job learn the same under a plan as it does as written?

A band around losses is not enough: halved gradients move a small model's loss less than honest rounding does.
So the first updates are compared parameter by parameter, from equal parameters, batch and random numbers, and
the measure of what rounding alone does is taken from twins of the baseline whose parameters were changed by
just that much before the first step.
"""

import dataclasses
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flatout.analyze.steps import loss_of, read_ranks
from flatout.records.session import GUARD_FILE, RANKS_FOLDER
from flatout.records.tuning import GuardEvidence

# A gradient may be this many times further from the reference than the furthest twin's.
_TIMES_THE_TWINS = 6.0
# ... or this many roundoffs of its own size, whichever is more.
_ROUNDOFFS = 8.0
# Along the reference, all gradients together: so far from 1 at least before it counts.
_ALONG = 0.02
# The update of one parameter may be this many times longer or shorter: Adam moves an element whose gradient
# is nothing but rounding as far as any other, and half of a bias can be such.
_LENGTH = 3.0
_TRAJECTORY_TIMES = 4.0
# Where only levels can be compared: fewer steps say nothing, and so many standard errors are too many.
_FEWEST_LEVELS = 8
_LEVELS_APART = 4.0

# The loss of each step, where it was seen.
Losses = Sequence[float | None]


@dataclasses.dataclass(frozen=True)
class GuardRun:
    """What one run left for the guard."""

    losses: tuple[float | None, ...]
    updates: tuple[dict[str, Any], ...]
    pairing: dict[str, Any]
    failed: str = ""

    @classmethod
    def read(cls, folder: Path) -> "GuardRun":
        """From a trial's folder."""
        ranks = read_ranks(folder)
        if not ranks:
            return cls((), (), {}, "the run made no update")
        lead = ranks[0]
        losses = tuple(loss_of(step) for step in lead.steps)
        updates: tuple[dict[str, Any], ...] = ()
        for place in sorted((folder / RANKS_FOLDER).glob(f"*-{lead.pid}/{GUARD_FILE}")):
            updates = tuple(json.loads(place.read_text())["updates"])
        failed = (
            ""
            if updates
            else str(lead.about.get("failed_taps", {}).get("guarding", "no update was sketched"))
        )
        return cls(losses, updates, lead.about.get("pairing") or {}, failed)


def is_paired(reference: GuardRun, other: GuardRun, twins: Sequence[GuardRun] = ()) -> bool:
    """Whether both began with the same parameters and saw the same inputs, by checksum.

    What one model hands to another (a generator's images, say) is input too, and rounds as the first one
    does. Where twins are given, only what they all saw alike is held to be data.
    """
    first, second = reference.pairing, other.pairing
    if not first.get("inputs") or not second.get("inputs"):
        return False
    runs = [[one[1] for one in run.pairing.get("inputs") or ()] for run in (reference, other, *twins)]
    both, *others = list(zip(*runs[:2], strict=False)), *runs[2:]
    data = [
        number
        for number in range(len(both))
        if all(run[number : number + 1] == [both[number][0]] for run in others)
    ]
    # Every update must have some.
    updates = {first["inputs"][number][0] for number in range(len(both))}
    if {first["inputs"][number][0] for number in data} != updates:
        return False
    same_inputs = all(both[number][0] == both[number][1] for number in data)
    return bool(first.get("parameters") == second.get("parameters") and same_inputs)


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
        return _weakly(reference, twins, candidate, curves)
    if exact and (same := bit_for_bit(reference, candidate)) is not None:
        return dataclasses.replace(same, curves=curves)
    same_state, problem = _same_state(reference, twins, candidate, roundoff)
    trajectory, drift = judge_trajectory(
        reference.losses, [twin.losses for twin in twins], candidate.losses, roundoff
    )
    problem = problem or drift
    return GuardEvidence(
        verdict="unsafe" if problem else "same",
        paired=True,
        reason=problem
        or "gradients, updates and losses are as close to the baseline's as rounding alone would put them",
        same_state=same_state,
        trajectory=trajectory,
        curves=curves,
    )


def bit_for_bit(reference: GuardRun, candidate: GuardRun) -> GuardEvidence | None:
    """The evidence where both began alike and every loss is the same; None where that is not so."""
    if reference.failed or candidate.failed or not is_paired(reference, candidate):
        return None
    if _known(reference.losses) != _known(candidate.losses) or not _known(reference.losses):
        return None
    curves = {"as written": list(reference.losses), "plan": list(candidate.losses)}
    reason = "losses are the same, bit for bit"
    return GuardEvidence(verdict="same", paired=True, reason=reason, curves=curves)


# Part one: the same state


@dataclasses.dataclass(frozen=True)
class _Scales:
    """What one update is measured by: the lengths of all its gradients and changes together."""

    roundoff: float
    # More than 1 where it starts from parameters that differ by what earlier updates did.
    slack: float
    gradients: float
    changes: float


def _same_state(
    reference: GuardRun, twins: Sequence[GuardRun], candidate: GuardRun, roundoff: float
) -> tuple[dict[str, Any], str]:
    """The first update of every optimizer, parameter by parameter; the evidence, and what is wrong."""
    evidence: dict[str, Any] = {"roundoff": roundoff}
    problem = _first_loss(reference, twins, candidate, roundoff, evidence)
    if len(candidate.updates) != len(reference.updates):
        wrong = f"{len(candidate.updates)} updates were sketched instead of {len(reference.updates)}"
        return evidence, problem or wrong
    seen: set[int] = set()
    worst = 0.0
    for number, expected in enumerate(reference.updates):
        first = expected["optimizer"] not in seen
        seen.add(expected["optimizer"])
        got = candidate.updates[number]
        others = [twin.updates[number] for twin in twins if number < len(twin.updates)]
        # Later updates start from parameters that differ by what the first one did to them.
        slack = 1.0 if first else 1.0 + 0.5 * number
        problem = problem or _between_updates(reference, candidate, number)
        problem = problem or _along(expected, others, got, roundoff * slack, evidence if first else {})
        scales = _Scales(
            roundoff, slack, _length(_all(expected, "gradients")), _length(_all(expected, "change"))
        )
        for name, value in expected["gradients"].items():
            share, wrong = _one_parameter(name, value, expected, others, got, scales)
            if share > worst:
                worst = share
                evidence["worst"] = {"parameter": name, "of_allowed": share, "update": number + 1}
            problem = problem or wrong
    return evidence, problem


def _between_updates(reference: GuardRun, candidate: GuardRun, number: int) -> str:
    """Nobody but the optimizer changes parameters, where nobody does in the reference."""
    own = [one["optimizer"] for one in reference.updates[:number]]
    if reference.updates[number]["optimizer"] not in own:
        return ""
    before = number - 1 - own[::-1].index(reference.updates[number]["optimizer"])
    for name, value in reference.updates[number]["before"].items():
        left = reference.updates[before].get("after", {}).get(name)
        if value is None or left is None or _distance(value, left) > 0:
            continue
        mine, mine_left = (
            candidate.updates[number]["before"].get(name),
            candidate.updates[before].get("after", {}).get(name),
        )
        if mine is not None and mine_left is not None and _distance(mine, mine_left) > 1e-6 * _length(mine):
            return f"{name} changes between two updates"
    return ""


def _first_loss(
    reference: GuardRun,
    twins: Sequence[GuardRun],
    candidate: GuardRun,
    roundoff: float,
    evidence: dict[str, Any],
) -> str:
    if not reference.losses or not candidate.losses:
        return ""
    expected, got = reference.losses[0], candidate.losses[0]
    if expected is None or got is None:
        return ""
    spread = max(
        (abs(twin.losses[0] - expected) for twin in twins if twin.losses and twin.losses[0] is not None),
        default=0.0,
    )
    allowed = _TIMES_THE_TWINS * spread + _ROUNDOFFS * roundoff * max(abs(expected), 1e-3)
    evidence["first_loss"] = {"expected": expected, "got": got, "allowed": allowed}
    if abs(got - expected) > allowed:
        return f"the first loss is {got:.6g}, not {expected:.6g}: rounding explains {allowed:.2g}"
    return ""


def _along(
    expected: dict[str, Any],
    others: Sequence[dict[str, Any]],
    got: dict[str, Any],
    roundoff: float,
    evidence: dict[str, Any],
) -> str:
    """All gradients, and all updates, along the reference's: 0.5 where they are halved, -1 where flipped."""
    for what, words in (("gradients", "gradients"), ("change", "updates of parameters")):
        whole = _all(expected, what)
        length = _dot(whole, whole)
        if length == 0.0:
            continue
        along = _dot(_all(got, what), whole) / length
        spread = max((abs(_dot(_all(other, what), whole) / length - 1.0) for other in others), default=0.0)
        allowed = max(_ALONG, _TIMES_THE_TWINS * spread, _ROUNDOFFS * roundoff)
        evidence[f"{what}_along"] = {"got": along, "allowed": allowed}
        if not abs(along - 1.0) <= allowed:
            return f"{words} are {along:.3f} times what they should be; rounding explains {allowed:.2g}"
    return ""


def _one_parameter(
    name: str,
    gradient: list[float] | None,
    expected: dict[str, Any],
    others: Sequence[dict[str, Any]],
    got: dict[str, Any],
    scales: "_Scales",
) -> tuple[float, str]:
    """How much of what rounding explains was used up, and what is wrong."""
    mine = got["gradients"].get(name)
    if (gradient is None) != (mine is None):
        return math.inf, f"{name} {'gets a gradient that it should not get' if mine else 'gets no gradient'}"
    worst, wrong = 0.0, ""
    if gradient is not None and mine is not None:
        size = _length(gradient)
        spread = max(
            (
                _distance(other["gradients"][name], gradient)
                for other in others
                if other["gradients"].get(name)
            ),
            default=0.0,
        )
        # Where the true gradient is nothing but rounding (a bias before a norm), its size says nothing: the
        # whole one's does.
        allowed = scales.slack * (
            _TIMES_THE_TWINS * spread
            + _ROUNDOFFS * scales.roundoff * size
            + scales.roundoff * scales.gradients
        )
        apart = _distance(mine, gradient)
        worst = apart / allowed if allowed else (math.inf if apart else 0.0)
        if apart > allowed:
            wrong = f"the gradient of {name} is off by {apart / max(size, 1e-30):.2g} of itself"
            wrong += f"; rounding explains {allowed / max(size, 1e-30):.2g}"
    change, mine_change = _change(expected, name), _change(got, name)
    if change is not None and mine_change is not None and _length(change) > 0:
        ratio = _length(mine_change) / _length(change)
        spread = max(
            (_length(c) / _length(change) for other in others if (c := _change(other, name)) is not None),
            default=1.0,
        )
        longest = _LENGTH * scales.slack * max(1.0, spread)
        is_nothing = max(_length(change), _length(mine_change)) <= 4 * scales.roundoff * scales.changes
        if not is_nothing and not 1.0 / longest <= ratio <= longest:
            wrong = wrong or f"the update of {name} is {ratio:.3g} times as long as it should be"
            worst = math.inf
    return worst, wrong


# Part two: the trajectory


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
    if apart > allowed:
        return (
            evidence,
            f"over {count} steps losses are {apart:.3g} from the baseline's; rounding explains {allowed:.3g}",
        )
    return evidence, ""


def _weakly(
    reference: GuardRun,
    twins: Sequence[GuardRun],
    candidate: GuardRun,
    curves: dict[str, list[float | None]],
) -> GuardEvidence:
    """Runs that did not see the same cannot be compared step by step: only their levels can.

    How far levels lie apart by themselves is what the runs as written show: each has a start of its own.
    """
    as_written = [_known(run.losses) for run in (reference, *twins)]
    got = _known(candidate.losses)
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


# Vectors


def _known(losses: Losses) -> list[float]:
    return [loss for loss in losses if loss is not None]


def _change(update: dict[str, Any], name: str) -> list[float] | None:
    before, after = update.get("before", {}).get(name), update.get("after", {}).get(name)
    if before is None or after is None:
        return None
    return [b - a for a, b in zip(before, after, strict=True)]


def _all(update: dict[str, Any], what: str) -> list[float]:
    names = update["gradients"]
    parts = (
        (_change(update, name) for name in names)
        if what == "change"
        else (update["gradients"].get(name) for name in names)
    )
    return [value for part in parts if part is not None for value in part]


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=False))


def _length(a: Sequence[float]) -> float:
    return math.sqrt(sum(x * x for x in a))


def _distance(a: Sequence[float], b: Sequence[float]) -> float:
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=False)))


def _rms(a: Sequence[float], b: Sequence[float]) -> float:
    return math.sqrt(statistics.fmean((x - y) ** 2 for x, y in zip(a, b, strict=True)))
