"""Part one of the guard: the first updates of every optimizer, parameter by parameter, from equal states."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from flatout.tune.guard_runs import GuardRun

# A gradient may be this many times further from the reference than the furthest twin's.
_TIMES_THE_TWINS = 6.0
# ... or this many roundoffs of its own size, whichever is more.
_ROUNDOFFS = 8.0
# Along the reference, all gradients together: so far from 1 at least before it counts.
_ALONG = 0.02
# Samples whose first class differs, beyond those of the twins.
_FIRSTS = 0.01
# The update of one parameter may be this many times longer or shorter: Adam moves an element whose gradient
# is nothing but rounding as far as any other, and half of a bias can be such.
_LENGTH = 3.0


@dataclasses.dataclass(frozen=True)
class _Scales:
    """What one update is measured by: the lengths of all its gradients and changes together."""

    roundoff: float
    # More than 1 where it starts from parameters that differ by what earlier updates did.
    slack: float
    gradients: float
    changes: float


def same_state(
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
        problem = problem or _first_places(expected, others, got, evidence)
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
    if not abs(got - expected) <= allowed:
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
    for what, words in (("gradients", _noun(expected)), ("change", "updates of parameters")):
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
    worst, wrong, is_rounding = 0.0, "", False
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
        # whole one's does. Nor does its update: Adam makes as much of it as of any other.
        is_rounding = spread >= 0.5 * size and size <= scales.roundoff * scales.gradients
        allowed = scales.slack * (
            _TIMES_THE_TWINS * spread
            + _ROUNDOFFS * scales.roundoff * size
            + scales.roundoff * scales.gradients
        )
        apart = _distance(mine, gradient)
        worst = apart / allowed if allowed else (math.inf if apart else 0.0)
        if apart > allowed:
            whose = name if _noun(expected) == "outputs" else f"the gradient of {name}"
            wrong = f"{whose} is off by {apart / max(size, 1e-30):.2g} of itself"
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
        if not is_nothing and not is_rounding and not 1.0 / longest <= ratio <= longest:
            wrong = wrong or f"the update of {name} is {ratio:.3g} times as long as it should be"
            worst = math.inf
    return worst, wrong


def _noun(update: dict[str, Any]) -> str:
    return str(update.get("what", "gradients"))


def _first_places(
    expected: dict[str, Any], others: Sequence[dict[str, Any]], got: dict[str, Any], evidence: dict[str, Any]
) -> str:
    """Of outputs that look like scores: how often the same class is first, against how often in twins."""
    wanted = [place for firsts in expected.get("largest", ()) for place in firsts]
    if not wanted:
        return ""
    share = _agreeing(got, wanted)
    least = min((_agreeing(other, wanted) for other in others), default=1.0)
    # One of a few samples that stand on the edge is no sign of anything.
    allowed = least - max(_FIRSTS, 1.5 / len(wanted))
    evidence["first_places"] = {"got": share, "twins": least, "allowed": allowed}
    if share < allowed:
        return f"{share:.1%} of the samples have the same class first; with rounding alone {least:.1%} have"
    return ""


def _agreeing(update: dict[str, Any], wanted: Sequence[int]) -> float:
    found = [place for firsts in update.get("largest", ()) for place in firsts]
    same = sum(1 for one, other in zip(found, wanted, strict=False) if one == other)
    return same / len(wanted)


# Vectors


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
