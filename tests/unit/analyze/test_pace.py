"""A pace is known from steps as they come, and takes no more memory after days than after minutes."""

import math
import pickle
from typing import Any

import pytest

from flatout.analyze.pace import Blocks, RankPace
from flatout.analyze.replay import Replay
from flatout.records.live import STEP_BUCKETS_S
from tests.unit.analyze.events import (
    END,
    MS,
    START,
    closed,
    forward,
    loader,
    step,
    steps,
    training,
    unwatched,
)


def paced(some: list[dict[str, Any]]) -> RankPace:
    pace = RankPace()
    for one in some:
        pace.take(one)
    return pace


def blocks_of(*parts: tuple[int, float]) -> Blocks:
    blocks = Blocks()
    for count, took_s in parts:
        for _ in range(count):
            blocks.add(took_s)
    return blocks


def test_a_host_that_runs_ahead_and_waits_has_the_pace_of_both() -> None:
    """Nine steps of 1 ms, then one that waits for the device: ten steps take 100 ms, not 10."""
    blocks = Blocks()
    for number in range(400):
        blocks.add(0.091 if number % 10 == 9 else 0.001)
    assert blocks.median_s() == pytest.approx(0.01, rel=0.1)


def test_a_single_long_step_is_nobodys_pace() -> None:
    assert blocks_of((100, 0.1), (1, 60.0), (20, 0.1)).median_s() == pytest.approx(0.1)


def test_few_steps_have_the_pace_that_they_have() -> None:
    assert blocks_of((2, 0.1)).median_s() == pytest.approx(0.1)
    assert Blocks().median_s() is None
    assert blocks_of((2, 0.1)).best_s is None


def test_the_best_pace_is_remembered() -> None:
    blocks = blocks_of((100, 0.1), (300, 0.2))
    assert blocks.median_s() == pytest.approx(0.2)
    assert blocks.best_s == pytest.approx(0.1)


@pytest.mark.parametrize(("slow", "times"), [(0.13, 1), (0.115, 0)])
def test_steps_that_stay_slower_are_one_slowdown(slow: float, times: int) -> None:
    assert blocks_of((160, 0.1), (320, slow)).slowdowns == times


def test_a_second_slowdown_counts_when_the_first_was_over() -> None:
    assert blocks_of((160, 0.1), (160, 0.2), (160, 0.1), (160, 0.2)).slowdowns == 2


def test_a_short_dip_is_no_slowdown() -> None:
    assert blocks_of((160, 0.1), (15, 0.2), (160, 0.1)).slowdowns == 0


def test_the_first_step_began_with_torch_and_has_no_time_of_its_own() -> None:
    pace = paced(
        [step(update=1, ended_ns=9000 * MS), step(update=2, started_ns=9000 * MS, ended_ns=9100 * MS)]
    )
    found = pace.steps()
    assert found.sum_s == pytest.approx(0.1)
    assert found.counts[STEP_BUCKETS_S.index(0.1)] == 1
    assert sum(found.counts) == 1
    assert (pace.first_s, pace.last_s) == (pytest.approx(9.0), pytest.approx(9.1))
    assert pace.samples == 16


def test_rates_and_waiting_are_of_the_last_steps() -> None:
    pace = paced(steps(40, tokens=80))
    assert pace.samples_per_s() == pytest.approx(80.0)
    assert pace.tokens_per_s() == pytest.approx(800.0)
    assert pace.data_wait_share() == pytest.approx(0.1)
    assert pace.data_wait_s == pytest.approx(0.4)
    assert pace.samples_per_step() == 8
    assert paced(steps(40)).tokens_per_s() is None


def test_steps_that_nobody_looked_at_are_like_the_last_that_somebody_did() -> None:
    replay, pace = Replay(), RankPace()
    events = [*training(10), *(unwatched(1000 * MS + place * 100 * MS, place + 10) for place in range(1, 11))]
    for one in replay.take(events):
        pace.take(one)
    assert pace.updates == 20
    assert pace.samples == 20 * 8
    assert pace.data_wait_s == pytest.approx(20 * 0.01)
    assert pace.loss == 1.0


def test_losses_that_are_not_finite_are_counted() -> None:
    pace = paced([step(update=1), step(update=2, losses=[math.nan]), step(update=3, losses=[math.inf])])
    assert pace.losses_not_finite == 2
    assert pace.loss == math.inf


def test_an_epoch_lasts_from_start_to_start_of_the_loader() -> None:
    some = steps(25)
    for place in (0, 8, 16, 24):
        some[place]["loaders"] = {START: (1, MS), 0: (1, MS)}
    pace = paced(some)
    assert pace.epochs.median_s() == pytest.approx(0.8)
    assert pace.epochs.median_steps() == 8


def test_a_loader_that_is_started_for_every_step_makes_no_epochs() -> None:
    assert paced(steps(20, loaders={START: (1, MS)})).epochs.median_s() is None


def test_evaluation_is_no_part_of_a_step() -> None:
    pace = paced([step(update=1), step(update=2, started_ns=0, ended_ns=600 * MS, evaluation_ns=500 * MS)])
    assert pace.evaluation_s == pytest.approx(0.5)
    assert pace.steps().sum_s == pytest.approx(0.1)


def test_days_take_no_more_memory_than_minutes() -> None:
    pace = paced(steps(2_000))
    early = len(pickle.dumps(pace))
    for one in steps(20_000):
        pace.take({**one, "update": one["update"] + 2_000})
    assert len(pickle.dumps(pace)) < early + 500


def test_an_evaluation_that_goes_on_and_on_is_seen_and_thinned_out() -> None:
    replay = Replay()
    replay.take([*training(2), loader(200 * MS, 201 * MS, START)])
    for place in range(5_000):
        at = 201 * MS + place * MS
        replay.take([forward(at, at + MS, gradients=False, training=False)])
        replay.thin_out(1_000)
    assert replay.is_evaluating()
    assert sum(replay.unfinished()) <= 1_000
    ends = 201 * MS + 5_000 * MS
    [last] = replay.take([loader(ends, ends, END), *training(1)[3:5], closed(ends + 100 * MS, 3)])
    assert last["evaluation_ns"] == pytest.approx(5_001 * MS, rel=0.001)
    assert not replay.is_evaluating()
