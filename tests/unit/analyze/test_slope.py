"""What rises for good, what only seems to, and between what the slope lies."""

import math
import random
from collections.abc import Callable

import pytest

from flatout.analyze.slope import slope_of

DRAWN = random.Random(7)


def series(value: Callable[[int], float], steps: int = 300) -> list[tuple[float, float]]:
    return [(float(step), float(value(step))) for step in range(steps)]


def test_a_straight_line_is_known_exactly() -> None:
    slope = slope_of(series(lambda step: 512 * step))
    assert slope is not None
    assert (slope.value, slope.low, slope.high, slope.rises) == (512, 512, 512, True)


@pytest.mark.parametrize(
    "value",
    [
        lambda step: 20e3 * step + DRAWN.gauss(0, 5e5),
        # Memory is taken by the chunk.
        lambda step: step // 20 * 4e5,
        # A batch in so many is much larger.
        lambda step: 20e3 * step + (5e7 if step % 29 == 3 else 0),
    ],
)
def test_what_rises_under_noise_rises_by_what_the_interval_says(value: Callable[[int], float]) -> None:
    slope = slope_of(series(value))
    assert slope is not None
    assert slope.rises
    assert slope.low <= slope.value <= slope.high
    assert slope.value == pytest.approx(20e3, rel=0.2)


@pytest.mark.parametrize(
    "value",
    [
        lambda _step: 1e9,
        lambda _step: DRAWN.gauss(0, 1e6),
        # A cache that fills up, early and late.
        lambda step: min(step, 150) * 1e5,
        lambda step: min(step, 220) * 1e5 + DRAWN.gauss(0, 1e4),
        # What is collected and written out every fifty steps.
        lambda step: step % 50 * 1e5,
        # What is given back.
        lambda step: -1e4 * step,
        lambda step: math.sin(step / 5) * 1e6,
    ],
)
def test_what_comes_and_goes_or_comes_to_rest_does_not_rise(value: Callable[[int], float]) -> None:
    slope = slope_of(series(value))
    assert slope is not None
    assert not slope.rises
    assert slope.steady == 0


def test_few_points_have_no_slope() -> None:
    assert slope_of([]) is None
    assert slope_of(series(float, 6)) is None
    assert slope_of(series(float, 7)) is not None


def test_of_many_points_some_are_enough() -> None:
    slope = slope_of(series(lambda step: 3 * step, 20_000))
    assert slope is not None
    assert slope.value == 3
