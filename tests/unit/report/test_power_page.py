"""The page and the words of a sweep: figures, hostile names, and nothing where nothing is known."""

import dataclasses
import io

import pytest
from rich.console import Console

from flatout.records.power import LimitRestored, PowerPoint, PowerSweep
from flatout.report.power import draw_sweep
from flatout.report.power_page import power_page
from tests.pages import parsed

EVIL = "<script>alert(1)</script>\x1b[31m"


def point(cap_w: int, ratio: float, slowdown: float) -> PowerPoint:
    return PowerPoint(
        cap_mw=cap_w * 1000,
        seconds=20.0,
        steps=100,
        step_s=0.2 * (1 + slowdown),
        watts=cap_w - 10.0,
        joules_per_step=130.0 * ratio,
        samples_per_joule=0.25 / ratio,
        slowdown=slowdown,
        energy_ratio=ratio,
        clock_hz=1_900_000_000,
        temperature_max_c=70,
        energy_source="counter",
    )


SWEEP = PowerSweep(
    job="train.py",
    devices=(),
    pace_source="steps",
    slowdown_bound=0.02,
    points=(point(700, 1.0, 0.0), point(600, 0.88, 0.01), point(500, 0.8, 0.06)),
    best_mw=600_000,
    best_reason="12.0% less energy for the same work, and steps are 1.0% longer",
    restored=(LimitRestored(uuid="u", index=0, found_mw=700_000, now_mw=700_000, outcome="restored"),),
)


def hostile(text: str) -> PowerSweep:
    return dataclasses.replace(SWEEP, job=text, notes=(text,), refusal=text, permitted=False)


def drawn(sweep: PowerSweep, width: int = 100) -> str:
    out = io.StringIO()
    draw_sweep(sweep, Console(file=out, width=width, markup=False, highlight=False))
    return out.getvalue()


def test_the_page_draws_energy_and_time_over_the_cap() -> None:
    page = parsed(power_page(SWEEP))
    lines = [attributes for tag, attributes in page.tags if tag == "polyline"]
    assert {line["class"] for line in lines} == {"energy", "time"}
    assert any("600 W" in text for text in page.texts)


def test_the_terminal_says_the_best_cap_and_what_became_of_the_limit() -> None:
    text = drawn(SWEEP)
    assert "the best cap is 600 W (found at 700 W)" in text
    assert "700 W again, as it was found" in text
    assert "energy from the counter" in text


@pytest.mark.parametrize("width", [20, 100])
def test_names_of_others_stay_text(width: int) -> None:
    assert "\x1b" not in drawn(hostile(EVIL), width)
    page = parsed(power_page(hostile(EVIL)))
    assert not any(tag == "script" for tag, _ in page.tags)


def test_with_one_point_there_is_no_picture_and_with_none_no_figure() -> None:
    alone = dataclasses.replace(SWEEP, points=SWEEP.points[:1], best_mw=700_000)
    assert not any(tag == "polyline" for tag, _ in parsed(power_page(alone)).tags)
    assert "130 J a step" in drawn(alone)
    nothing = dataclasses.replace(SWEEP, points=(), best_mw=None)
    parsed(power_page(nothing))
    assert "nothing was measured" in drawn(nothing)
