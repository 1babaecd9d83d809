"""The history of a device: true curves, gaps where nothing is known, and memory that stays the same."""

import pytest

from flatout.monitor.history import DeviceHistory
from tests.fakes.machines import h200_sample

DAY_S = 24 * 3600


def filled(seconds: int, *, every_s: float = 1.0, began: float = 1_000_000.0) -> DeviceHistory:
    history = DeviceHistory()
    for number in range(round(seconds / every_s)):
        at = began + number * every_s
        history.add(h200_sample(taken_at_unix_s=at, power_draw_mw=100_000 + number % 60, temperature_c=None))
    return history


def test_a_curve_gives_low_mean_and_high_of_each_part() -> None:
    history = DeviceHistory()
    for second, power in enumerate((100, 300, 200, 400)):
        history.add(h200_sample(taken_at_unix_s=1000.0 + second, power_draw_mw=power))
    first, second = history.curve("power_draw_mw", 4.0, 2, until_unix_s=1004.0)
    assert first is not None
    assert (first.low, first.mean, first.high) == (100, 200, 300)
    assert second is not None
    assert (second.low, second.mean, second.high) == (200, 300, 400)


def test_what_is_unknown_is_a_gap_and_not_zero() -> None:
    history = filled(10)
    assert history.curve("temperature_c", 10.0, 5) == [None] * 5


def test_a_lost_device_leaves_a_gap() -> None:
    history = DeviceHistory()
    history.add(h200_sample(taken_at_unix_s=1000.0, temperature_c=50))
    history.add(h200_sample(taken_at_unix_s=1001.0, temperature_c=60, state="down"))
    history.add(h200_sample(taken_at_unix_s=1002.0, temperature_c=70))
    shown = history.curve("temperature_c", 3.0, 3, until_unix_s=1003.0)
    assert [None if part is None else part.mean for part in shown] == [50, None, 70]


def test_a_stale_sample_that_comes_again_counts_once() -> None:
    history = DeviceHistory()
    for _ in range(5):
        history.add(h200_sample(taken_at_unix_s=1000.0, temperature_c=50))
    history.add(h200_sample(taken_at_unix_s=1001.0, temperature_c=70))
    [whole] = history.curve("temperature_c", 2.0, 1, until_unix_s=1002.0)
    assert whole is not None
    assert whole.mean == 60


def test_hours_that_left_the_ring_of_samples_are_there_as_minutes() -> None:
    history = filled(3 * 3600, began=0.0)
    parts = history.curve("power_draw_mw", 3 * 3600.0, 18)
    assert all(part is not None for part in parts)
    oldest = parts[1]
    assert oldest is not None
    assert (oldest.low, oldest.high) == (100_000, 100_059)
    assert oldest.mean == pytest.approx(100_029.5, abs=1)


def test_no_moment_is_counted_as_minute_and_as_sample() -> None:
    history = DeviceHistory(samples_kept=90)
    for second in range(600):
        history.add(h200_sample(taken_at_unix_s=float(second), temperature_c=40 if second < 300 else 80))
    parts = history.curve("temperature_c", 600.0, 10, until_unix_s=600.0)
    assert [part.mean if part else None for part in parts[:5]] == [40] * 5
    assert {part.mean for part in parts[5:] if part is not None} == {80}


def test_a_day_takes_no_more_memory_than_a_minute() -> None:
    young, old = filled(60), filled(DAY_S + 7200, every_s=10.0)
    assert young.bytes_held == old.bytes_held < 400_000
    # A day, and what is older is forgotten.
    assert old.curve("power_draw_mw", DAY_S - 600.0, 24)[0] is not None
    assert old.curve("power_draw_mw", DAY_S + 7200.0, 26)[0] is None


def test_a_clock_that_is_set_back_leaves_the_past_as_far_away_as_it_was() -> None:
    history = filled(2 * 3600, began=100_000.0)
    set_back_to = 50_000.0
    for second in range(60):
        history.add(h200_sample(taken_at_unix_s=set_back_to + second, power_draw_mw=700_000))
    assert history.newest_unix_s == set_back_to + 59
    [after] = history.curve("power_draw_mw", 58.0, 1)
    assert after is not None
    assert (after.low, after.high) == (700_000, 700_000)
    [before] = history.curve("power_draw_mw", 58.0, 1, until_unix_s=set_back_to - 1)
    assert before is not None
    assert 100_000 <= before.low <= before.high <= 100_059
    hours = history.curve("power_draw_mw", 2 * 3600.0, 12)
    assert all(part is not None for part in hours)


def test_a_sample_that_comes_a_little_late_moves_nothing() -> None:
    history = filled(10)
    newest = history.newest_unix_s
    history.add(h200_sample(taken_at_unix_s=newest - 2, power_draw_mw=700_000))
    assert history.newest_unix_s == newest
