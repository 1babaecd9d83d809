"""Joules from a counter or from power: resets, gaps and stale samples, and which of both it was."""

import gc
import weakref
from collections.abc import Iterable
from typing import Any

import pytest

from flatout.analyze.energy import EnergyFollower
from flatout.records.device import DeviceSample
from flatout.records.energy import Energy
from tests.fakes.machines import h200_sample


def energy(samples: Iterable[DeviceSample]) -> Energy:
    follower = EnergyFollower()
    for one in samples:
        follower.add(one)
    return follower.total()


def sample(
    at_s: float, watts: float | None = None, joules: float | None = None, **changes: Any
) -> DeviceSample:
    return h200_sample(
        taken_at_unix_s=1000.0 + at_s,
        power_draw_mw=None if watts is None else round(watts * 1000),
        energy_total_mj=None if joules is None else round(joules * 1000),
        **changes,
    )


def test_the_counter_goes_before_the_power() -> None:
    found = energy([sample(0, 700, 5000), sample(1, 700, 5400), sample(2, 700, 5900)])
    assert (found.joules, found.source) == (pytest.approx(900.0), "counter")
    assert found.mean_watts == pytest.approx(450.0)


def test_without_a_counter_power_is_summed_up() -> None:
    found = energy([sample(0, 100), sample(1, 300), sample(3, 300)])
    assert (found.joules, found.source) == (pytest.approx(800.0), "power")


def test_a_counter_covers_a_gap_and_power_does_not() -> None:
    assert energy([sample(0, 500, 0), sample(3600, 500, 100_000)]).joules == pytest.approx(100_000)
    found = energy([sample(0, 500), sample(1, 500), sample(3601, 500), sample(3602, 500)])
    assert found.joules == pytest.approx(1000.0)
    assert (found.covered_s, found.missing_s) == (pytest.approx(2.0), pytest.approx(3600.0))


def test_a_counter_that_begins_anew_loses_no_joule_that_power_can_tell() -> None:
    found = energy([sample(0, 400, 9000), sample(1, 400, 9400), sample(2, 400, 10), sample(3, 400, 410)])
    assert found.joules == pytest.approx(400 + 400 + 400)
    assert (found.resets, found.source) == (1, "counter and power")


def test_a_leap_that_no_device_can_make_is_not_believed() -> None:
    found = energy([sample(0, 400, 100), sample(1, 400, 10**9), sample(2, 400, 10**9 + 400)])
    assert found.joules == pytest.approx(800.0)
    assert found.resets == 1


def test_stale_and_lost_samples_count_for_nothing() -> None:
    samples = [
        sample(0, 400, 1000),
        sample(0, 400, 1000, state="stale", state_reason="blocked"),
        sample(1, state="down", state_reason="lost"),
        sample(5, 400, 3000),
    ]
    assert energy(samples).joules == pytest.approx(2000.0)


def test_nothing_known_is_unknown_and_not_zero() -> None:
    found = energy([sample(0), sample(1)])
    assert (found.joules, found.source, found.missing_s) == (None, "none", pytest.approx(1.0))
    assert found.unknown["joules"]
    assert energy([]).joules is None


def test_one_device_without_a_reading_leaves_its_time_missing_in_the_sum() -> None:
    found = energy([s for n in range(2) for s in (sample(n, joules=n * 500, uuid="a"), sample(n, uuid="b"))])
    assert found.joules == pytest.approx(500.0)
    assert (found.covered_s, found.missing_s) == (pytest.approx(1.0), pytest.approx(1.0))


def test_following_keeps_sums_and_no_samples() -> None:
    follower = EnergyFollower()
    seen = []
    for n in range(200):
        one = sample(n, 500, 500 * n)
        seen.append(weakref.ref(one))
        follower.add(one)
    del one
    gc.collect()
    assert follower.total().joules == pytest.approx(500 * 199)
    assert sum(found() is not None for found in seen) == 1


def test_a_counter_that_is_read_now_and_then_is_filled_up_by_power_until_it_moves() -> None:
    follower = EnergyFollower()
    for second in range(5):
        follower.add(sample(second, 500, 1000))
    found = follower.total()
    assert (found.joules, found.source) == (pytest.approx(2000.0), "power")
    follower.add(sample(5, 500, 3600))
    found = follower.total()
    assert (found.joules, found.source, found.covered_s) == (pytest.approx(2600.0), "counter", 5.0)
    follower.add(sample(6, 500, 3600))
    found = follower.total()
    assert (found.joules, found.source) == (pytest.approx(3100.0), "counter and power")


def test_a_counter_that_comes_and_goes_counts_where_it_is() -> None:
    found = energy([sample(0, 100), sample(1, 100, 500), sample(2, 100, 700), sample(3, 100), sample(4, 100)])
    assert (found.joules, found.covered_s) == (pytest.approx(100 + 200 + 100 + 100), 4.0)


def test_power_that_reads_too_high_is_never_taken_back() -> None:
    follower = EnergyFollower()
    told = []
    for second in range(91):
        counted = 600 * (second - second % 30)
        follower.add(sample(second, 660, counted))
        told.append(follower.total().joules or 0.0)
    assert told == sorted(told)
    assert told[30] == told[29], "power had told 10 % more than the counter: the sum waits"
    assert told[-1] == pytest.approx(600 * 60 + 660 * 29), "and is right again within one reading"


@pytest.mark.parametrize("joules", [None, 500], ids=["power", "counter"])
def test_a_clock_that_is_set_back_stops_no_sum(joules: float | None) -> None:
    follower = EnergyFollower()
    for at_s in (0, 1, 2, -3600, -3599, -3598):
        counted = None if joules is None else joules * (at_s % 3600)
        follower.add(sample(at_s, 500, counted))
    found = follower.total()
    assert found.joules == pytest.approx(2000.0), "nobody knows how long it was from 2 to -3600"
    assert (found.covered_s, found.missing_s, found.resets) == (pytest.approx(4.0), 0.0, 0)


def test_what_the_counter_will_tell_is_not_counted_twice_when_the_clock_is_set_back() -> None:
    follower = EnergyFollower()
    for at_s, joules in ((0, 0), (1, 0), (2, 0), (-60, 0), (-59, 0), (-58, 2500)):
        follower.add(sample(at_s, 500, joules))
    assert follower.total().joules == pytest.approx(2500.0)
