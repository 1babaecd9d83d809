"""What a device did in the last day, in memory that does not grow.

Two rings of float32: every sample of the last while, and a low, a mean and a high for each minute of the last
day. Both are filled as samples come, so nothing is ever rewritten; a day of eight GPUs takes less than 3 MB.
"""

import dataclasses
import math
from array import array

from flatout.analyze.throttling import BACK_S
from flatout.records.device import DeviceSample

# At one sample a second, an hour.
SAMPLES_KEPT = 3600
MINUTES_KEPT = 24 * 60
_MINUTE_S = 60.0

# What is kept of a sample; shares from 0 to 1, everything else in the sample's own units.
SERIES = (
    "power_draw_mw",
    "temperature_c",
    "memory_used_bytes",
    "kernel_running_share",
    "sm_active_share",
    "tensor_active_share",
    "memory_bandwidth_share",
    "clock_compute_hz",
    "clock_memory_hz",
)


@dataclasses.dataclass(frozen=True)
class Spread:
    """What a series did in a stretch of time."""

    low: float
    mean: float
    high: float


class _Ring:
    """Rows of numbers with their times; the oldest make room for the newest. NaN is unknown."""

    def __init__(self, rows: int, columns: int) -> None:
        self.rows, self.columns = rows, columns
        self.times = array("d", bytes(8 * rows))
        self.values = array("f", bytes(4 * rows * columns))
        self.count = 0

    def add(self, at_unix_s: float, row: "array[float]") -> None:
        place = self.count % self.rows
        self.times[place] = at_unix_s
        self.values[place * self.columns : (place + 1) * self.columns] = row
        self.count += 1

    def places_since(self, at_unix_s: float) -> list[int]:
        """Places of the rows from this time on, oldest first."""
        found: list[int] = []
        for number in range(self.count - 1, max(0, self.count - self.rows) - 1, -1):
            if self.times[number % self.rows] < at_unix_s:
                break
            found.append(number % self.rows)
        return found[::-1]

    def move_back(self, seconds: float) -> None:
        """As if all of them had been added so much earlier."""
        for place in range(min(self.count, self.rows)):
            self.times[place] -= seconds

    @property
    def oldest(self) -> float:
        if not self.count:
            return math.inf
        return self.times[self.count % self.rows if self.count > self.rows else 0]


class DeviceHistory:
    """The history of one device. One thread adds; others may read at any time."""

    def __init__(self, samples_kept: int = SAMPLES_KEPT, minutes_kept: int = MINUTES_KEPT) -> None:
        self._samples = _Ring(samples_kept, len(SERIES))
        self._minutes = _Ring(minutes_kept, 3 * len(SERIES))
        self._minute = -1
        self._forming: list[list[float]] = [[] for _ in SERIES]

    def add(self, sample: DeviceSample) -> None:
        """Take a sample in. A stale one says nothing new, and one of a lost device nothing at all."""
        known = sample.state == "up"
        row = array("f", (_number(getattr(sample, name)) if known else math.nan for name in SERIES))
        if self._samples.count and sample.taken_at_unix_s <= self.newest_unix_s:
            if self.newest_unix_s - sample.taken_at_unix_s <= BACK_S:
                return
            self._follow_the_clock(sample.taken_at_unix_s)
        self._close_minute_before(sample.taken_at_unix_s)
        for values, value in zip(self._forming, row, strict=True):
            if not math.isnan(value):
                values.append(value)
        self._samples.add(sample.taken_at_unix_s, row)

    @property
    def newest_unix_s(self) -> float:
        """When the last sample was taken; 0 before the first."""
        ring = self._samples
        return ring.times[(ring.count - 1) % ring.rows] if ring.count else 0.0

    @property
    def bytes_held(self) -> int:
        """What the rings take, however much has been added."""
        return sum(len(each) * each.itemsize for ring in self._rings for each in (ring.times, ring.values))

    def curve(
        self, series: str, seconds: float, places: int, *, until_unix_s: float | None = None
    ) -> list[Spread | None]:
        """The last `seconds` in so many equal parts, oldest first; None where nothing is known."""
        until = self.newest_unix_s if until_unix_s is None else until_unix_s
        since = until - seconds
        column = SERIES.index(series)
        parts: list[list[Spread]] = [[] for _ in range(places)]
        for at, spread in self._spreads(column, since):
            if at <= until:
                parts[min(places - 1, max(0, int((at - since) / seconds * places)))].append(spread)
        return [_together(found) for found in parts]

    @property
    def _rings(self) -> tuple[_Ring, _Ring]:
        return self._samples, self._minutes

    def _spreads(self, column: int, since: float) -> list[tuple[float, Spread]]:
        fine = self._samples
        found: list[tuple[float, Spread]] = []
        if fine.oldest > since:
            coarse = self._minutes
            for place in coarse.places_since(since - _MINUTE_S):
                at = place * coarse.columns + 3 * column
                low, mean, high = coarse.values[at : at + 3]
                if not math.isnan(mean) and coarse.times[place] + _MINUTE_S <= fine.oldest:
                    found.append((coarse.times[place] + _MINUTE_S / 2, Spread(low, mean, high)))
        for place in fine.places_since(since):
            value = fine.values[place * fine.columns + column]
            if not math.isnan(value):
                found.append((fine.times[place], Spread(value, value, value)))
        return found

    def _follow_the_clock(self, at_unix_s: float) -> None:
        """It was set back: what was before goes back with it, so that the past stays as far away."""
        self._close_minute()
        self._minute = int(at_unix_s // _MINUTE_S)
        seconds = self.newest_unix_s - at_unix_s
        for ring in self._rings:
            ring.move_back(seconds)

    def _close_minute_before(self, at_unix_s: float) -> None:
        minute = int(at_unix_s // _MINUTE_S)
        if minute != self._minute:
            self._close_minute()
            self._minute = minute

    def _close_minute(self) -> None:
        if self._minute >= 0 and any(self._forming):
            row = array("f")
            for values in self._forming:
                row.extend(
                    (min(values), sum(values) / len(values), max(values)) if values else (math.nan,) * 3
                )
            self._minutes.add(self._minute * _MINUTE_S, row)
        for values in self._forming:
            values.clear()


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _together(found: list[Spread]) -> Spread | None:
    if not found:
        return None
    return Spread(
        min(each.low for each in found),
        sum(each.mean for each in found) / len(found),
        max(each.high for each in found),
    )
