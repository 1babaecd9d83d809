"""Where the steady state begins, what is only said, and how sure a median is."""

import math
import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.analyze.steady import Interval, change_point, find_steady, median_interval, percentile

NOISE = 0.01


def noisy(level: float, count: int, rng: random.Random) -> list[float]:
    return [level * (1 + rng.gauss(0, NOISE)) for _ in range(count)]


@pytest.fixture
def rng() -> random.Random:
    return random.Random(7)


def test_a_constant_series_is_steady_after_the_first_steps() -> None:
    steady = find_steady([10.0] * 30)
    assert (steady.start, steady.reached, steady.shifted_at) == (2, True, None)
    assert steady.reason == "after the first steps"


def test_noise_around_one_level_is_no_shift() -> None:
    starts = [find_steady(noisy(10.0, 60, random.Random(seed))).start for seed in range(100)]
    assert sum(start == 2 for start in starts) >= 97


@pytest.mark.parametrize("steady_steps", [30, 60, 300])
@pytest.mark.parametrize("warm_up", [8, 15, 25])
@pytest.mark.parametrize("factor", [0.8, 1.1, 3.0])
def test_a_warm_up_is_left_out_and_little_more(
    warm_up: int, factor: float, steady_steps: int, rng: random.Random
) -> None:
    times = noisy(10.0 * factor, warm_up, rng) + noisy(10.0, steady_steps, rng)
    steady = find_steady(times)
    assert steady.reached
    assert steady.shifted_at is None
    assert warm_up <= steady.start <= warm_up + 8
    assert statistics.fmean(times[steady.start :]) == pytest.approx(10, rel=0.01)


def test_a_warm_up_in_two_stages_is_left_out(rng: random.Random) -> None:
    times = noisy(30.0, 10, rng) + noisy(14.0, 12, rng) + noisy(10.0, 60, rng)
    steady = find_steady(times)
    assert 21 <= steady.start <= 24
    assert steady.reason == "after an early shift in step time"


def test_a_shift_that_does_not_matter_costs_no_steps(rng: random.Random) -> None:
    times = [10.1 + rng.gauss(0, 0.005) for _ in range(20)] + [10.0 + rng.gauss(0, 0.005) for _ in range(40)]
    assert change_point([10.3] * 20 + [10.0] * 40) == 20
    assert find_steady(times).start == 2


def test_a_ramp_is_followed_to_its_flat_part(rng: random.Random) -> None:
    times = [30 - place for place in range(20)] + noisy(10.0, 60, rng)
    steady = find_steady(times)
    assert steady.reached
    assert 17 <= steady.start <= 24


def test_a_ramp_without_an_end_is_said_to_shift(rng: random.Random) -> None:
    times = [10 + 0.5 * place + rng.gauss(0, 0.05) for place in range(60)]
    steady = find_steady(times)
    assert not steady.reached or steady.shifted_at is not None


def test_spikes_that_come_again_and_again_are_part_of_the_pace(rng: random.Random) -> None:
    times = [value * (6 if place % 10 == 9 else 1) for place, value in enumerate(noisy(10.0, 80, rng))]
    steady = find_steady(times)
    assert (steady.start, steady.reached, steady.shifted_at) == (2, True, None)


def test_a_late_shift_is_said_and_costs_no_steps(rng: random.Random) -> None:
    times = noisy(10.0, 50, rng) + noisy(13.0, 30, rng)
    steady = find_steady(times)
    assert (steady.start, steady.reached) == (2, True)
    assert steady.shifted_at is not None
    assert 48 <= steady.shifted_at <= 52


def test_what_follows_the_last_compilation_is_steady(rng: random.Random) -> None:
    compiled = [place in (0, 1, 12) for place in range(40)]
    steady = find_steady(noisy(10.0, 40, rng), compiled)
    assert (steady.start, steady.reached, steady.reason) == (13, True, "after the last compilation")


def test_a_job_that_compiles_to_the_end_never_gets_there() -> None:
    steady = find_steady([10.0] * 20, [True] * 20)
    assert not steady.reached
    assert steady.start == 20
    assert "after the last compilation" in steady.reason


@pytest.mark.parametrize("count", range(10))
def test_too_few_steps_are_not_steady_and_the_reason_counts_them(count: int) -> None:
    steady = find_steady([10.0] * count)
    assert not steady.reached
    assert steady.start == min(2, count)
    left = max(0, count - 2)
    assert f"only {left} {'step' if left == 1 else 'steps'} after" in steady.reason


def test_ten_steps_are_enough() -> None:
    assert find_steady([10.0] * 10).reached


@settings(deadline=None)
@given(
    times=st.lists(st.floats(0.001, 1e6), max_size=80),
    compiled=st.lists(st.booleans(), max_size=80),
)
def test_any_series_has_an_answer_within_it(times: list[float], compiled: list[bool]) -> None:
    compiled = compiled[: len(times)]
    steady = find_steady(times, compiled)
    assert 0 <= steady.start <= len(times)
    assert steady.reached == (len(times) - steady.start >= 8)
    assert not any(compiled[steady.start :])
    if steady.shifted_at is not None:
        assert len(times) / 2 < steady.shifted_at < len(times)


@settings(deadline=None)
@given(st.lists(st.floats(0.001, 1e6), min_size=16, max_size=60), st.floats(0.01, 100))
def test_the_unit_of_time_makes_no_difference(times: list[float], unit: float) -> None:
    scaled = [time * unit for time in times]
    if len(set(scaled)) == len(set(times)):  # where rounding has not made two of them equal
        assert change_point(scaled) == change_point(times)


# The median -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [10, 20, 30, 31, 75, 200])
@pytest.mark.parametrize("skewed", [False, True])
def test_the_interval_covers_the_true_median_as_often_as_it_says(count: int, skewed: bool) -> None:
    rng = random.Random(1234 + count)  # the same draws each time: this cannot fail by chance
    true = math.log(2) if skewed else 10.0
    covered = 0
    for _ in range(400):
        values = [rng.expovariate(1) if skewed else rng.gauss(10, 1) for _ in range(count)]
        interval = median_interval(values)
        assert interval is not None
        covered += interval.low <= true <= interval.high
    assert covered / 400 >= 0.93


def test_the_interval_narrows_as_steps_come_in() -> None:
    rng = random.Random(5)
    values = [rng.gauss(10, 1) for _ in range(1600)]
    narrow, wide = median_interval(values), median_interval(values[:100])
    assert narrow is not None
    assert wide is not None
    assert narrow.half_width_share < wide.half_width_share / 2
    assert narrow.half_width_share == pytest.approx(1.96 * 1.2533 / 40 / 10, rel=0.4)


@settings(deadline=None)
@given(st.lists(st.floats(0.001, 1e9), min_size=1))
def test_the_median_lies_in_its_interval_and_the_interval_in_the_values(values: list[float]) -> None:
    interval = median_interval(values)
    assert interval is not None
    assert interval.median == statistics.median(values)
    assert interval.low in values
    assert interval.high in values
    assert interval.low <= interval.median <= interval.high


def test_nothing_has_no_median() -> None:
    assert median_interval([]) is None


def test_the_width_of_an_interval_around_zero_is_endless() -> None:
    assert Interval(0.0, 0.0, 0.0).half_width_share == math.inf


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(0, 1), st.floats(0, 1))
def test_percentiles_are_ordered_and_inside(values: list[float], a: float, b: float) -> None:
    low, high = percentile(values, min(a, b)), percentile(values, max(a, b))
    slack = 1e-9 * max(1.0, *map(abs, values))  # of interpolating
    assert min(values) - slack <= low <= high + slack <= max(values) + 2 * slack
    assert percentile(values, 0) == min(values)
    assert percentile(values, 1) == max(values)


def test_a_percentile_lies_between_its_neighbours() -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5
    assert percentile([5.0], 0.95) == 5.0
