"""When a device will be too hot: its temperature approaches an end, and does not rise in a straight line.

Under a steady load a temperature follows `end - (end - start) * exp(-t / tau)`. The curve is fitted to the
last minutes; a straight line through the same points would cry wolf at every start of a job.
"""

import dataclasses
import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Literal

from flatout.records.device import DeviceSample

Course = Literal["reaches", "stays below", "steady", "cooling", "at the limit", "unknown"]

WINDOW_S = 180.0
_FEWEST = 12
_SHORTEST_S = 20.0
# Temperatures are whole degrees: less than this is no movement.
_STILL_C = 1.5
# A curve that leaves this much of the movement unexplained is none.
_NOISY = 0.5
# Curves whose errors differ by less than this cannot be told apart in whole degrees.
_AS_GOOD_C = 0.1
_TAUS_S = tuple(4.0 * 1.25**n for n in range(26))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThermalForecast:
    """Where a temperature goes. `reaches_in_s` is from the newest sample on."""

    course: Course
    temperature_c: float | None = None
    limit_c: int | None = None
    reaches_in_s: float | None = None
    settles_at_c: float | None = None
    reason: str = ""


class ThermalFollower:
    """Keeps the last minutes of one device, in flat memory."""

    def __init__(self, limit_c: int | None, *, window_s: float = WINDOW_S) -> None:
        self._limit_c = limit_c
        self._window_s = window_s
        # At most one sample a second is kept: more would not tell more.
        self._points: deque[tuple[float, int]] = deque(maxlen=math.ceil(window_s) + 1)

    def add(self, sample: DeviceSample) -> None:
        """The next sample; one without a temperature says nothing."""
        if sample.state != "up" or sample.temperature_c is None:
            return
        at_s = sample.taken_at_unix_s
        if self._points and at_s - self._points[-1][0] < 0.9:
            return
        self._points.append((at_s, sample.temperature_c))
        while self._points[0][0] < at_s - self._window_s:
            self._points.popleft()

    def forecast(self) -> ThermalForecast:
        """From what was seen so far."""
        return forecast(self._points, self._limit_c)

    def forget(self) -> None:
        """What was seen belongs to another load: a cap has just been changed."""
        if self._points:
            last = self._points[-1]
            self._points.clear()
            self._points.append(last)


def forecast(points: Iterable[tuple[float, float]], limit_c: int | None) -> ThermalForecast:
    """Seconds and degrees, in order of time, and the degree from which on clocks are lowered."""
    seen = list(points)
    if not seen:
        return ThermalForecast(course="unknown", limit_c=limit_c, reason="no temperature was seen")
    now_c = float(seen[-1][1])
    if limit_c is None:
        reason = "the device does not say from which temperature on it slows down"
        return ThermalForecast(course="unknown", temperature_c=now_c, reason=reason)
    said = {"temperature_c": now_c, "limit_c": limit_c}
    if now_c >= limit_c:
        return ThermalForecast(course="at the limit", reaches_in_s=0.0, **said)  # type: ignore[arg-type]
    if len(seen) < _FEWEST or seen[-1][0] - seen[0][0] < _SHORTEST_S:
        return ThermalForecast(course="unknown", reason="too few samples yet", **said)  # type: ignore[arg-type]
    return _from_curve(seen, now_c, limit_c)


def _from_curve(seen: Sequence[tuple[float, float]], now_c: float, limit_c: int) -> ThermalForecast:
    times = [at_s - seen[-1][0] for at_s, _ in seen]
    heats = [heat for _, heat in seen]
    fits = sorted(_fit(times, heats, tau) for tau in _TAUS_S)
    error, end_c, gap_c, tau = fits[0]
    # A short look at a long curve fits many of them: all that are about as good must agree.
    ends_c = [other for err, other, _, _ in fits if err <= error + _AS_GOOD_C]
    # `gap_c` is what is left to rise at the newest sample, by the curve.
    moved_c = abs(gap_c) * (math.exp(-times[0] / tau) - 1)
    said = {"temperature_c": now_c, "limit_c": limit_c}
    still = max(heats) - min(heats) <= _STILL_C or moved_c <= _STILL_C
    if error > max(_NOISY * moved_c, 1.0) or (still and max(heats) - min(heats) > 4 * _STILL_C):
        return ThermalForecast(course="unknown", reason="the temperature jumps about", **said)  # type: ignore[arg-type]
    if still:
        return ThermalForecast(course="steady", settles_at_c=now_c, **said)  # type: ignore[arg-type]
    if gap_c < 0:
        return ThermalForecast(course="cooling", settles_at_c=max(end_c, 0.0), **said)  # type: ignore[arg-type]
    # What little is left to rise, and an end just above the limit, are within the error of the fit.
    if end_c <= limit_c + 0.5:
        return ThermalForecast(course="stays below", settles_at_c=end_c, **said)  # type: ignore[arg-type]
    if min(ends_c) <= limit_c + 0.5:
        reason = "it rises, and it is too early to tell how far"
        return ThermalForecast(course="unknown", settles_at_c=end_c, reason=reason, **said)  # type: ignore[arg-type]
    at_now_c = end_c - gap_c
    left_s = tau * math.log(gap_c / (end_c - limit_c)) if at_now_c < limit_c else 0.0
    return ThermalForecast(
        course="reaches",
        reaches_in_s=max(left_s, 0.0),
        settles_at_c=end_c,
        **said,  # type: ignore[arg-type]
    )


def _fit(times: Sequence[float], heats: Sequence[float], tau: float) -> tuple[float, float, float, float]:
    """Least squares of `end - gap * exp(-t / tau)`: the error of a point, the end, the gap at t = 0, tau."""
    basis = [math.exp(-t / tau) for t in times]
    count = len(times)
    mean_b, mean_h = sum(basis) / count, sum(heats) / count
    spread = sum((b - mean_b) ** 2 for b in basis)
    slope = sum((b - mean_b) * (h - mean_h) for b, h in zip(basis, heats, strict=True)) / spread
    end = mean_h - slope * mean_b
    squares = sum((end + slope * b - h) ** 2 for b, h in zip(basis, heats, strict=True))
    return math.sqrt(squares / count), end, -slope, tau
