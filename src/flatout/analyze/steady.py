"""When a job has reached its pace: the last change-point in its step times, and how sure the median is.

Warm-up is not a number of steps: caches fill, compilers run, autotuners try, loaders refill their queues. The
steady state begins after the last step that compiled something and after the last early shift in the level of
step times that is both significant (a rank test of what lies before a place against what lies after it, at
every place) and large enough to matter. A shift in the later half is no warm-up: the job or its machine
changed pace, which is said, and costs no steps.
"""

import dataclasses
import math
import statistics
from collections.abc import Sequence

MATTERS = 0.02
_SIGNIFICANT = 0.01
_FEWEST = 8
# Steps at the start that are never steady: the first allocations and library initialisations.
_ALWAYS_WARM_UP = 2
_Z95 = 1.959964


@dataclasses.dataclass(frozen=True)
class Steady:
    """Where the steady state begins (an index), and whether there is one."""

    start: int
    reached: bool
    reason: str
    shifted_at: int | None = None


@dataclasses.dataclass(frozen=True)
class Interval:
    """A median and the 95 % interval of it, by order statistics: no assumption on the distribution."""

    median: float
    low: float
    high: float

    @property
    def half_width_share(self) -> float:
        """Half the interval's width, as a share of the median."""
        return (self.high - self.low) / 2 / self.median if self.median > 0 else math.inf


def find_steady(times: Sequence[float], compiled: Sequence[bool] = ()) -> Steady:
    """Where the steady state begins in a series of step times; `compiled` marks steps with a compilation."""
    start = min(_ALWAYS_WARM_UP, len(times))
    reason = "after the first steps"
    last_compile = max((place for place, flag in enumerate(compiled) if flag), default=-1)
    if last_compile + 1 > start:
        start, reason = last_compile + 1, "after the last compilation"
    shifted_at = None
    while len(times) - start >= 2 * _FEWEST:
        shift = change_point(times[start:])
        if shift is None:
            break
        if start + shift > len(times) / 2:
            shifted_at = start + shift
            break
        start, reason = start + shift, "after an early shift in step time"
    if len(times) - start < _FEWEST:
        count = len(times) - start
        missing = f"only {count} {'step' if count == 1 else 'steps'} {reason}; {_FEWEST} are needed"
        return Steady(start=min(start, len(times)), reached=False, reason=missing)
    return Steady(start=start, reached=True, reason=reason, shifted_at=shifted_at)


def change_point(times: Sequence[float]) -> int | None:
    """The place where the level of a series changes most, if that is significant and matters; else None."""
    n = len(times)
    ranks = _ranks(times)
    total, best, place, looked = 0.0, 0.0, 0, 0
    for k in range(1, n):
        total += ranks[k - 1]
        if _FEWEST // 2 <= k <= n - _FEWEST // 2:
            # Mann and Whitney's, in standard deviations: without dividing by them, as Pettitt's test does, a
            # warm-up of fewer than about sqrt(n) steps could be as slow as it likes and would not be seen.
            deviation = abs(total - k * (n + 1) / 2) / math.sqrt(k * (n - k) * (n + 1) / 12)
            looked += 1
            if deviation > best:
                best, place = deviation, k
    if place == 0:
        return None
    p = looked * math.erfc(best / math.sqrt(2))
    before, after = statistics.median(times[:place]), statistics.median(times[place:])
    if p < _SIGNIFICANT and abs(before - after) > MATTERS * min(before, after):
        return place
    return None


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1, ties sharing their mean."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for place in range(start, end + 1):
            ranks[order[place]] = (start + end) / 2 + 1
        start = end + 1
    return ranks


def median_interval(values: Sequence[float]) -> Interval | None:
    """The median with its interval; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    n = len(ordered)
    reach = _Z95 * math.sqrt(n) / 2
    low = max(0, math.floor(n / 2 - reach) - 1)
    high = min(n - 1, math.ceil(n / 2 + reach))
    return Interval(statistics.median(ordered), ordered[low], ordered[high])


def percentile(values: Sequence[float], share: float) -> float:
    """A percentile by linear interpolation."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
