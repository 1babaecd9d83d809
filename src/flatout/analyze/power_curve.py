"""Which power cap costs least: energy and pace under each, against those under the limit that was found."""

import dataclasses
from collections.abc import Sequence

from flatout.records.power import PowerPoint

# Less than this is within what two looks at the same job differ.
WORTH_IT = 0.01
_STEP_SHARE = 0.1
_ROUND_MW = 5_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Best:
    """The cap to take, and why."""

    cap_mw: int | None
    reason: str


def caps_to_try(found_mw: int, draw_mw: float | None, min_mw: int) -> list[int]:
    """Caps in tenths, from what the job draws downwards: one above that changes nothing."""
    top = min(float(found_mw), draw_mw * 1.05) if draw_mw else float(found_mw)
    caps: list[int] = []
    for tenths in range(1, 10):
        cap = round(top * (1 - _STEP_SHARE * tenths) / _ROUND_MW) * _ROUND_MW
        if cap < min_mw:
            break
        if cap < found_mw:
            caps.append(cap)
    if min_mw < found_mw and (not caps or caps[-1] - min_mw > _STEP_SHARE * top / 2):
        caps.append(min_mw)
    return caps


def enough(points: Sequence[PowerPoint], bound: float) -> bool:
    """Whether lower caps are no use: the last two were too slow."""
    last = [point.slowdown for point in points[-2:]]
    return len(points) >= 3 and all(slowdown is not None and slowdown > bound for slowdown in last)


def between(points: Sequence[PowerPoint], bound: float) -> int | None:
    """A cap halfway between the lowest that was fast enough and the highest that was not."""
    good = [p.cap_mw for p in points if p.slowdown is not None and p.slowdown <= bound]
    bad = [p.cap_mw for p in points if p.slowdown is not None and p.slowdown > bound]
    if not good or not bad or max(bad) > min(good):
        return None
    middle = round((min(good) + max(bad)) / 2 / _ROUND_MW) * _ROUND_MW
    return middle if max(bad) < middle < min(good) else None


def compared(point: PowerPoint, base: PowerPoint, pace: float | None, base_pace: float | None) -> PowerPoint:
    """The point with its slowdown and its energy for the same work; paces are steps or bytes a second."""
    if pace is None or base_pace is None or pace <= 0:
        return point
    ratio = None
    if point.watts is not None and base.watts:
        ratio = (point.watts / pace) / (base.watts / base_pace)
    return dataclasses.replace(point, slowdown=base_pace / pace - 1.0, energy_ratio=ratio)


def best_cap(points: Sequence[PowerPoint], bound: float) -> Best:
    """The least energy within the bound; the first point is the limit that was found."""
    base = points[0] if points else None
    if base is None or base.energy_ratio is None:
        return Best(cap_mw=None, reason="neither steps nor activity were seen: nothing can be compared")
    within = [
        point
        for point in points
        if point.energy_ratio is not None and point.slowdown is not None and point.slowdown <= bound
    ]
    least = min(within, key=lambda point: (point.energy_ratio or 1.0, point.cap_mw))
    if (least.energy_ratio or 1.0) > 1.0 - WORTH_IT:
        tried = len(points) - 1
        return Best(
            cap_mw=base.cap_mw,
            reason=f"none of {tried} caps saves more than {WORTH_IT:.0%} within a slowdown of {bound:.1%}"
            if tried
            else "no lower cap could be tried",
        )
    return Best(
        cap_mw=least.cap_mw,
        reason=f"{1 - (least.energy_ratio or 1.0):.1%} less energy for the same work, and steps are "
        f"{max(least.slowdown or 0.0, 0.0):.1%} longer",
    )
