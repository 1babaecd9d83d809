"""Dollars a step, a sample, a token and an epoch, and the hours that were paid and not used."""

from typing import Any

import pytest

from flatout.analyze.cost import cost_of, job_time_of, unused_s
from flatout.records.energy import Energy, HourPrice, JobTime
from flatout.records.live import STEP_BUCKETS_S, LiveJob, LiveTotals, StepTimes

TWO_DOLLARS = HourPrice(usd_per_gpu_hour=2.0, source="your own price")


def job(**changes: Any) -> JobTime:
    """Eight GPUs for an hour: 3000 steps of a second, 10 % of them waiting; the rest is accounted for."""
    given: dict[str, Any] = {
        "gpus": 8,
        "held_s": 3600.0,
        "steps": 3000,
        "samples": 96_000,
        "tokens": 96_000 * 1024,
        "steps_s": 3000.0,
        "loader_wait_s": 300.0,
        "before_first_step_s": 120.0,
        "evaluation_s": 240.0,
        "checkpoint_s": 60.0,
        "stalled_s": 0.0,
        "after_last_step_s": 30.0,
        "samples_per_epoch": 32_000,
        "steps_left": 6000,
        "energy": Energy(joules=8e6, source="counter", covered_s=8 * 3600.0),
    }
    return JobTime(**{**given, **changes})


def test_all_hours_are_paid_for() -> None:
    cost = cost_of(job(), TWO_DOLLARS)
    assert cost.gpu_hours == pytest.approx(8.0)
    assert cost.usd == pytest.approx(16.0)
    assert cost.usd_per_step == pytest.approx(16 / 3000)
    assert cost.usd_per_thousand_samples == pytest.approx(16 / 96)
    assert cost.usd_per_million_tokens == pytest.approx(16 / (96_000 * 1024) * 1e6)
    assert cost.usd_per_epoch == pytest.approx(16 / 3)
    assert cost.joules_per_step == pytest.approx(8e6 / 3000)
    assert cost.samples_per_joule == pytest.approx(96_000 / 8e6)


def test_hours_that_were_not_used_are_told_by_cause_and_sum_up() -> None:
    cost = cost_of(job(), TWO_DOLLARS)
    hours = {cause: round(value * 3600 / 8) for cause, value in cost.unused_gpu_hours.items()}
    assert hours == {
        "before_first_step": 120,
        "loader_wait": 300,
        "evaluation": 240,
        "checkpoint": 60,
        "after_last_step": 30,
        "unattributed": 150,
    }
    assert cost.usd_unused == pytest.approx(900 * 8 / 3600 * 2)
    # What is left is what the steps took, without their waiting.
    assert 3600 - sum(unused_s(job()).values()) == pytest.approx(3000 - 300)


def test_the_end_costs_what_the_last_pace_says_with_the_time_between_steps() -> None:
    around = (3600 - 120 - 30) / 3000
    assert cost_of(job(), TWO_DOLLARS).usd_to_end == pytest.approx(6000 * around * 8 * 2 / 3600)
    faster = cost_of(job(step_s=0.5), TWO_DOLLARS).usd_to_end
    assert faster == pytest.approx(6000 * 0.5 * around * 8 * 2 / 3600)


def test_without_a_price_hours_are_known_and_dollars_say_why_not() -> None:
    cost = cost_of(job(), HourPrice(usd_per_gpu_hour=None, source="no price is listed for NVIDIA X"))
    assert cost.gpu_hours == pytest.approx(8.0)
    assert (cost.usd, cost.usd_per_step, cost.usd_unused) == (None, None, None)
    assert cost.unknown["usd_per_epoch"] == "no price is listed for NVIDIA X"
    assert cost.joules_per_step is not None


def test_a_job_without_steps_has_no_price_a_step() -> None:
    cost = cost_of(job(steps=0, samples=None, tokens=None, steps_s=0.0), TWO_DOLLARS)
    assert cost.usd == pytest.approx(16.0)
    assert (cost.usd_per_step, cost.usd_per_epoch, cost.usd_to_end) == (None, None, None)
    assert cost.unknown["usd_per_step"] == "no step was made"


def test_a_live_file_tells_the_time_of_a_job() -> None:
    counts = [0] * (len(STEP_BUCKETS_S) + 1)
    counts[5] = 40
    live = LiveJob(
        run="r",
        name="train.py",
        run_folder="/x",
        host="h",
        pid=1,
        user="u",
        state="training",
        started_at_unix_s=0.0,
        written_at_unix_s=100.0,
        updates=40,
        updates_planned=100,
        devices=("GPU-a", "GPU-b"),
        totals=LiveTotals(
            steps=StepTimes(counts=tuple(counts), sum_s=50.0),
            samples=400,
            device_s=180.0,
            device_idle_s=60.0,
            data_wait_s=5.0,
            energy_j=4000.0,
            energy_source="power",
            before_first_step_s=30.0,
        ),
    )
    time = job_time_of(live)
    assert (time.gpus, time.held_s, time.steps, time.steps_left) == (2, 90.0, 40, 60)
    assert (time.tokens, time.checkpoint_s) == (None, None)
    assert (time.energy.joules, time.energy.source) == (4000.0, "power")
    assert unused_s(time) == {"before_first_step": 30.0, "loader_wait": 5.0, "unattributed": 10.0}
