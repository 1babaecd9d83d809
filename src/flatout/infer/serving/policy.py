"""What a batch may be, and which sizes are worth their time, by what was measured at the start."""

import dataclasses
import functools

# Another size than that of the items is taken where it was measured to be so much better.
_CLEARLY = 1.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy:
    """What a batch may be."""

    # Items in a batch; how long the first of them may wait for others; how many may wait at once.
    most: int
    wait_s: float
    queue: int
    # Items a second by the size of a batch, where measured: two together can be slower than one by one.
    rates: tuple[tuple[int, float], ...] = ()

    # By present times, no item is accepted that would take longer.
    limit_s: float = float("inf")

    def worthwhile(self, count: int) -> int:
        """How many of so many should go at once."""
        took_s = self.predicted_s(count)
        below = [one for one in self.rates if one[0] <= count]
        if took_s is None or not below:
            return count
        size, best = max(below, key=lambda one: one[1])
        return size if best > _CLEARLY * count / took_s else count

    def filled(self, count: int, most: int) -> int:
        """What so many are filled up to, of at most `most`: some kernels are made for larger ones."""
        own_s = self._interpolated(count)
        larger = [(size / rate, size) for size, rate in self.rates if count < size <= most]
        if own_s is None or not larger:
            return count
        took_s, size = min(larger)
        return size if _CLEARLY * took_s < own_s else count

    def predicted_s(self, count: int) -> float | None:
        """What a batch of so many took when it was measured, filled up or not; else None."""
        if count not in self._known:
            self._known[count] = self._interpolated(self.filled(count, self.most))
        return self._known[count]

    @functools.cached_property
    def _known(self) -> dict[int, float | None]:
        """Every request asks for some of them."""
        return {}

    def _interpolated(self, count: int) -> float | None:
        """Between two sizes by a line."""
        below = [one for one in self.rates if one[0] <= count]
        above = [one for one in self.rates if one[0] >= count]
        if not below or not above:
            return None
        (less, slow), (more, fast) = below[-1], above[0]
        share = 0.0 if less == more else (count - less) / (more - less)
        return less / slow + (more / fast - less / slow) * share
