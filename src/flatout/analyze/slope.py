"""How fast a series rises for good: Theil's and Sen's slope, with an interval that does not take fright.

The slope is the median of those between all pairs of points, which a few odd points cannot move. Its interval
(Sen's, from Kendall's rank statistic) holds for points that know nothing of each other; memory remembers, so
the interval is widened by how much neighbours resemble each other. Something that rose for a while and then
stopped has neighbours that resemble each other most, and gets an interval with zero inside.
"""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Sequence

Point = tuple[float, float]

# Points without which there is no slope, after those of the warm-up.
FEWEST = 5
# There is nothing to learn from more, and pairs are many.
_MOST = 256
_Z95 = 1.959964
# Of the slope: what the last third must still have.
_STILL = 0.5
_ALIKE_AT_MOST = 0.98


@dataclasses.dataclass(frozen=True)
class Slope:
    """By how much a series rises from one step to the next, and between what that lies with 95 %."""

    value: float
    low: float
    high: float
    # The rate of its last third.
    late: float

    @property
    def rises(self) -> bool:
        """Beyond doubt, and until the end."""
        return self.low > 0 and self.late >= _STILL * self.value

    @property
    def steady(self) -> float:
        """The slope where it rises, else nothing."""
        return self.value if self.rises else 0.0


def slope_of(points: Sequence[Point]) -> Slope | None:
    """Of a series of (step, value), without its first third; None where too few are left."""
    kept = _thinned(points[len(points) // 3 :])
    if len(kept) < FEWEST:
        return None
    slopes = _between_pairs(kept)
    value = _median(slopes)
    n = len(kept)
    spread = _Z95 * math.sqrt(n * (n - 1) * (2 * n + 5) / 18 * _widening(kept, value))
    low = max(0, math.floor((len(slopes) - spread) / 2))
    late = kept[-max(3, n // 3) :]
    return Slope(
        value=value,
        low=slopes[low],
        high=slopes[len(slopes) - 1 - low],
        late=_median(_between_pairs(late)),
    )


def _thinned(points: Sequence[Point]) -> Sequence[Point]:
    return points[:: -(-len(points) // _MOST) or 1]


def _between_pairs(points: Sequence[Point]) -> list[float]:
    return sorted(
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for place, earlier in enumerate(points)
        for later in points[place + 1 :]
    )


def _median(ordered: Sequence[float]) -> float:
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _widening(points: Sequence[Point], value: float) -> float:
    """How many points like these are worth one that knows nothing of the others."""
    rest = [y - value * x for x, y in points]
    middle = statistics.fmean(rest)
    rest = [one - middle for one in rest]
    size = sum(one * one for one in rest)
    if size <= 0:
        return 1.0
    alike = sum(before * after for before, after in itertools.pairwise(rest)) / size
    alike = min(_ALIKE_AT_MOST, max(0.0, alike))
    return (1 + alike) / (1 - alike)
