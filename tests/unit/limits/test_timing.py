"""Timing: the right number of calls, medians, and spreads that say something."""

import time

import pytest
import torch

from flatout.limits.timing import Stopwatch, summarize


@pytest.fixture
def watch() -> Stopwatch:
    return Stopwatch(torch, "cpu")


def test_a_call_of_known_length_is_timed_right(watch: Stopwatch) -> None:
    timing = watch.measure(lambda: time.sleep(0.01), burst_s=0.03, bursts=3)
    assert timing.median_s >= 0.01  # sleep never returns early; how late it is depends on the machine


def test_a_burst_makes_the_lead_calls_and_the_counted_ones(watch: Stopwatch) -> None:
    calls = []
    watch.burst(lambda: calls.append(1), repeats=5, lead=2)
    assert len(calls) == 7


def test_a_long_call_is_made_once_per_burst(watch: Stopwatch) -> None:
    calls = []

    def call() -> None:
        calls.append(1)
        time.sleep(0.02)

    watch.measure(call, burst_s=0.001, bursts=2)
    # three to warm up, two to find out how long one takes, then (two leads + one counted) a burst
    assert len(calls) == 3 + 2 + 2 * 3


def test_sustained_work_goes_on_for_the_asked_time(watch: Stopwatch) -> None:
    start = time.monotonic()
    per_call = watch.sustain(lambda: time.sleep(0.005), seconds=0.2, burst_s=0.02)
    assert time.monotonic() - start >= 0.2
    assert per_call >= 0.005


def test_the_median_ignores_one_bad_burst() -> None:
    timing = summarize([1.0, 1.0, 1.0, 1.0, 9.0])
    assert timing.median_s == 1.0


def test_the_spread_of_equal_bursts_is_zero_and_of_unequal_ones_is_not() -> None:
    assert summarize([2.0] * 5).spread_share == 0.0
    assert summarize([1.0, 1.5, 2.0, 2.5, 3.0]).spread_share == pytest.approx(0.75)
