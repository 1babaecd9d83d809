"""Looks at memory over a long loop, in little room and little time."""

import statistics
import time
from collections.abc import Callable

_MOST = 1024
# Of steps beyond the first, one in so many is looked at: by Knuth's multiplier, which keeps them apart and
# falls into step with nothing that a script does every so many steps.
_ONE_IN, _GOLDEN = 32, 2654435761
# All looks together may take so long, and this share of the loop, or there are fewer from then on; but with
# fewer than these there would be nothing to tell.
_ALLOWED_S, _SHARE = 0.005, 0.005
_KEPT = 32
# Looks without which nothing is guessed, after those of the warm-up.
_FEWEST = 4


def is_looked_at(step: int) -> bool:
    """Whether this step is among the few that are looked at for as long as a job runs."""
    return (step * _GOLDEN & 0xFFFFFFFF) < (1 << 32) // _ONE_IN


class Looks:
    """At every step at first, then at every second, every fourth and so on: the longer the loop, the fewer.

    Sooner, where looks take long.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._began = time.perf_counter()
        self._spent_s = 0.0
        # Steps that are multiples of this are looked at.
        self.every = 1
        self.points: list[tuple[int, int]] = []

    def look(self, step: int, read: Callable[[], int | None]) -> None:
        """At a step that is a multiple of `every`."""
        began = time.perf_counter()
        size = read()
        ended = time.perf_counter()
        self._spent_s += ended - began
        if size is not None:
            self.points.append((step, size))
        is_costly = self._spent_s > _ALLOWED_S + _SHARE * (ended - self._began)
        if len(self.points) >= (_KEPT if is_costly else self._most):
            self.every *= 2
            self.points = [point for point in self.points if not point[0] % self.every]


def rise(points: list[tuple[int, int]]) -> float:
    """Bytes a step, roughly and cheaply: from the middle of the earlier looks to that of the later ones."""
    kept = points[len(points) // 3 :]
    if len(kept) < _FEWEST:
        return 0.0
    half = len(kept) // 2
    earlier, later = kept[:half], kept[-half:]
    steps = statistics.fmean(step for step, _ in later) - statistics.fmean(step for step, _ in earlier)
    sizes = statistics.median(size for _, size in later) - statistics.median(size for _, size in earlier)
    return sizes / steps
