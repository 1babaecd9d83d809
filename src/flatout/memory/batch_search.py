"""Finds the batch size at which a job is fast and memory still has room, with few trials.

Only sizes that ran are ever chosen. Memory grows with the batch along a line, nearly: two sizes that ran say
where it ends, and one more trial shows whether they were right. So does time, which tells where the knee is.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

from flatout.records.errors import JobFailed

# Throughput this near to the best is as good.
_AS_GOOD = 0.97
# A line through two small sizes is not followed further than this at once.
_FARTHEST_JUMP = 16
# Where memory cannot be read.
_BLIND_JUMP = 4
# Not worth a trial: a size that is larger, or smaller, by less than this.
_SAME_SIZE = 1.05
_TRIALS_AT_MOST = 16
_KNEE_TRIALS = 2
# Fast kernels like it so.
_MULTIPLE = 8


class TriedSize(NamedTuple):
    """A batch size that ran, and what it took; None for what is not known.

    It is less than was asked for where there are no more samples.
    """

    size: int
    samples_per_s: float | None
    peak_bytes: int | None
    fits: bool


@dataclasses.dataclass(frozen=True)
class BatchSize:
    """The batch size that was found, and how."""

    size: int
    tried: tuple[TriedSize, ...]
    trials: int
    why: str
    # What became of `evaluate`: None where there was none.
    evaluation: str | None = None


class Search:
    """Asks for one trial after the other, until it knows."""

    def __init__(
        self, run: Callable[[int], TriedSize], *, limit_bytes: float | None, most: int, first: int
    ) -> None:
        self._run = run
        self._limit_bytes = limit_bytes
        self._most = most
        self._first = min(first, most)
        self.tried: list[TriedSize] = []
        # The samples that there are, where somebody asked for more.
        self.all_samples: int | None = None

    def find(self) -> TriedSize:
        """The smallest size that ran, left room, and was within 3 % of the fastest that did."""
        found = self._try(self._first)
        while not found.fits:
            if found.size == 1:
                raise _nothing_fits(found)
            found = self._try(found.size // 2)
        while len(self.tried) < _TRIALS_AT_MOST and (larger := self._larger()) is not None:
            self._try(larger)
        for _ in range(_KNEE_TRIALS):
            knee = self._knee()
            if knee is None:
                break
            self._try(knee)
        return self._chosen()

    def _try(self, size: int) -> TriedSize:
        found = self._run(size)
        if found.size < size:
            self.all_samples = self._most = found.size
        self.tried.append(found)
        return found

    @property
    def _fitting(self) -> list[TriedSize]:
        return sorted((one for one in self.tried if one.fits), key=lambda one: one.size)

    @property
    def _best(self) -> float:
        return max(one.samples_per_s or 0.0 for one in self._fitting)

    def _chosen(self) -> TriedSize:
        return next(one for one in self._fitting if (one.samples_per_s or 0.0) >= self._best * _AS_GOOD)

    def _larger(self) -> int | None:
        """A larger size that is worth a trial."""
        fitting = self._fitting
        top = fitting[-1].size
        too_large = min((one.size for one in self.tried if not one.fits), default=None)
        end = self._most if too_large is None else too_large - 1
        if top >= end or self._stopped_gaining(fitting):
            return None
        if len(fitting) == 1 and too_large is None:
            return min(2 * top, end)
        guess = self._where_memory_ends()
        if guess is None:
            guess = _BLIND_JUMP * top if too_large is None else (top + too_large) // 2
        elif guess > end and too_large is not None:
            guess = (top + too_large) // 2  # the line was wrong
        guess = min(guess, _FARTHEST_JUMP * top, end)
        return guess if guess > top * _SAME_SIZE else None

    @staticmethod
    def _stopped_gaining(fitting: list[TriedSize]) -> bool:
        """Three sizes, and the largest is no faster than the best of the others."""
        *others, last = [one.samples_per_s or 0.0 for one in fitting]
        return len(others) > 1 and last * _AS_GOOD <= max(others)

    def _where_memory_ends(self) -> int | None:
        """The largest size that should fit, by the line through the two largest that were read."""
        read = sorted((one.size, one.peak_bytes) for one in self.tried if one.peak_bytes is not None)
        if self._limit_bytes is None or len(read) < 2:
            return None
        (small, little), (large, much) = read[-2:]
        for_each = (much - little) / (large - small)
        if for_each <= 0:
            return self._most
        return math.floor(large + (self._limit_bytes - much) / for_each)

    def _knee(self) -> int | None:
        """A smaller size that should be as good, by the line through the times of two neighbours."""
        chosen = self._chosen()
        below = [one for one in self._fitting if one.size < chosen.size and one.samples_per_s]
        if not below or not chosen.samples_per_s:
            return None
        lower = below[-1]
        slow_s, fast_s = lower.size / (lower.samples_per_s or 1.0), chosen.size / chosen.samples_per_s
        for_each_s = (fast_s - slow_s) / (chosen.size - lower.size)
        always_s = slow_s - for_each_s * lower.size
        wanted = self._best * _AS_GOOD
        if always_s <= 0 or wanted * for_each_s >= 1:
            return None
        size = math.ceil(wanted * always_s / (1 - wanted * for_each_s))
        size = size + -size % _MULTIPLE if size > _MULTIPLE else size
        is_new = lower.size * _SAME_SIZE < size and size * _SAME_SIZE < chosen.size
        return size if is_new and all(one.size != size for one in self.tried) else None


def why(
    chosen: TriedSize, tried: list[TriedSize], limit_bytes: float | None, all_samples: int | None = None
) -> str:
    """In words."""
    best = max((one for one in tried if one.fits), key=lambda one: one.samples_per_s or 0.0)
    ran = len({one.size for one in tried if one.samples_per_s is not None})
    text = (
        f"of {ran} sizes that ran, {chosen.size} is the smallest within 3 % of the fastest "
        f"({best.samples_per_s or 0.0:.0f} samples/s at {best.size})"
    )
    if chosen.peak_bytes is not None and limit_bytes:
        text += f", with {chosen.peak_bytes / 2**30:.2f} of {limit_bytes / 2**30:.2f} GiB in use at its peak"
    if all_samples is not None:
        text += f"; no larger batch than {all_samples} could be filled: `make_batch` gave no more samples"
    return text


def _nothing_fits(last: TriedSize) -> JobFailed:
    ran_out = last.samples_per_s is None
    return JobFailed(
        "a batch of 1 runs out of memory"
        if ran_out
        else "a batch of 1 leaves less memory free than asked for",
        expected="a training step that fits into memory with one sample",
        remedy="see what takes the memory with `flatout fit`"
        + ("" if ran_out else "; or ask for less headroom"),
    )
