"""Forecasts of heat: an exponential approach, and the near misses that must not warn."""

import math
import random

import pytest

from flatout.analyze.thermal_forecast import ThermalFollower, forecast
from tests.fakes.machines import h200_sample

LIMIT_C = 87


def approach(start: float, end: float, tau: float, seconds: int) -> list[tuple[float, float]]:
    """What a device says each second: whole degrees."""
    return [(float(t), float(int(end - (end - start) * math.exp(-t / tau)))) for t in range(seconds)]


@pytest.mark.parametrize(
    ("start", "end", "tau", "seconds"), [(40, 95, 60, 60), (45, 100, 120, 100), (50, 92, 40, 50)]
)
def test_an_approach_to_above_the_limit_reaches_it_about_then(
    start: float, end: float, tau: float, seconds: int
) -> None:
    found = forecast(approach(start, end, tau, seconds), LIMIT_C)
    assert found.course == "reaches"
    really_s = -tau * math.log((end - LIMIT_C) / (end - start)) - (seconds - 1)
    assert found.reaches_in_s == pytest.approx(really_s, rel=0.4, abs=8)
    assert found.settles_at_c == pytest.approx(end, abs=6)


@pytest.mark.parametrize(
    ("start", "end", "tau", "seconds"), [(40, 80, 60, 90), (35, 75, 30, 60), (50, 84, 45, 120)]
)
def test_a_steep_start_that_levels_off_below_the_limit_does_not_warn(
    start: float, end: float, tau: float, seconds: int
) -> None:
    seen = approach(start, end, tau, seconds)
    found = forecast(seen, LIMIT_C)
    assert found.course in ("stays below", "steady")
    # A straight line through the first half of the same points would have warned.
    (t0, h0), (t1, h1) = seen[0], seen[len(seen) // 3]
    assert h1 + (h1 - h0) / (t1 - t0) * 120 > LIMIT_C


def test_steady_at_just_below_the_limit_is_steady() -> None:
    generator = random.Random(7)
    seen = [(float(t), float(85 + generator.choice((0, 0, 1)))) for t in range(120)]
    assert forecast(seen, LIMIT_C).course == "steady"


def test_cooling_is_cooling() -> None:
    assert forecast(approach(86, 50, 60, 100), LIMIT_C).course == "cooling"


def test_noise_is_no_forecast() -> None:
    generator = random.Random(3)
    seen = [(float(t), float(generator.randint(50, 80))) for t in range(120)]
    assert forecast(seen, LIMIT_C).course == "unknown"


def test_a_noisy_rise_is_still_seen() -> None:
    generator = random.Random(5)
    seen = [(t, heat + generator.choice((-1, 0, 1))) for t, heat in approach(40, 98, 60, 60)]
    assert forecast(seen, LIMIT_C).course == "reaches"


def test_too_little_and_nothing_are_unknown_with_a_reason() -> None:
    assert forecast([], LIMIT_C).course == "unknown"
    short = forecast([(0.0, 60.0), (1.0, 70.0)], LIMIT_C)
    assert (short.course, short.reason) == ("unknown", "too few samples yet")
    assert "does not say" in forecast(approach(40, 95, 60, 60), None).reason


def test_at_the_limit_it_is_too_late_for_a_forecast() -> None:
    assert forecast([(0.0, 88.0)], LIMIT_C).course == "at the limit"


def test_following_keeps_minutes_and_not_days() -> None:
    follower = ThermalFollower(LIMIT_C)
    for n in range(4000):
        follower.add(h200_sample(taken_at_unix_s=1000.0 + 0.5 * n, temperature_c=70))
    follower.add(h200_sample(taken_at_unix_s=9000.0, temperature_c=None))
    assert len(follower._points) <= 181
    assert follower.forecast().course == "steady"
    follower.forget()
    assert follower.forecast().course == "unknown"
