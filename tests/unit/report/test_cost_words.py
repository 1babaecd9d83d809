"""Costs, energy and clock limits in lines; what is unknown is said with its reason."""

import pytest

from flatout.analyze.cost import cost_of
from flatout.records.energy import Energy, HourPrice, JobTime, Throttling
from flatout.report.cost_words import cost_lines, dollars, energy, throttling_line


def job(**changes: object) -> JobTime:
    facts: dict[str, object] = {
        "gpus": 2,
        "held_s": 3600.0,
        "steps": 1000,
        "samples": 8000,
        "steps_s": 3000.0,
        "before_first_step_s": 300.0,
        "energy": Energy(joules=5.4e6, source="counter", covered_s=7200.0),
    }
    return JobTime(**{**facts, **changes})  # type: ignore[arg-type]


PRICE = HourPrice(usd_per_gpu_hour=3.0, source="the lowest listed")


def test_dollars_energy_and_unused_hours_are_told() -> None:
    lines = cost_lines(cost_of(job(), PRICE))
    assert lines[0] == (
        "cost: $6.00, 2 GPUs for 1 h: $0.006 a step, $0.75 a thousand samples (price: the lowest listed)"
    )
    assert lines[1] == "energy: 1.50 kWh, 5400 J a step (by their own counters)"
    assert lines[2] == (
        "paid and not used: 20 min of GPU time, $1.00: 10 min before the first step, "
        "10 min for causes that are not known"
    )


def test_without_a_price_hours_are_told_and_why() -> None:
    without = HourPrice(usd_per_gpu_hour=None, source="no price is listed for X")
    lines = cost_lines(cost_of(job(energy=Energy()), without))
    assert lines[0] == "cost: 2 GPUs for 1 h; dollars unknown (no price is listed for X)"
    assert lines[1].startswith("energy: unknown (")


def test_little_that_was_not_used_is_not_worth_a_word() -> None:
    assert len(cost_lines(cost_of(job(steps_s=3590.0, before_first_step_s=10.0), PRICE))) == 2


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (Throttling(), ""),
        (Throttling(given_s={"power_cap": 0.2}), ""),
        (Throttling(given_s={"power_cap": 90.0}), "clocks were held down: power cap 1 min"),
        (
            Throttling(
                given_s={"thermal_software": 90.0}, lost_s={"thermal": 12.0, "power": 0.0, "other": 0.0}
            ),
            "clocks were held down: thermal software 1 min; that cost 12.0 s at most",
        ),
    ],
)
def test_clock_limits_are_told_where_there_were_some(found: Throttling, line: str) -> None:
    assert throttling_line(found) == line


@pytest.mark.parametrize(
    ("usd", "text"), [(1234.5, "$1,234.50"), (0.75, "$0.75"), (0.0031, "$0.0031"), (2e-7, "$2.0e-07")]
)
def test_dollars_have_the_digits_that_say_something(usd: float, text: str) -> None:
    assert dollars(usd) == text


@pytest.mark.parametrize(
    ("joules", "text"), [(None, "unknown"), (310.0, "310 J"), (42_000.0, "42.0 kJ"), (7.2e6, "2.00 kWh")]
)
def test_energy_has_the_unit_that_fits(joules: float | None, text: str) -> None:
    assert energy(joules) == text
