"""Limits in a terminal and as a page, drawn from a real measurement of an H200."""

import dataclasses
import io
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from flatout.records.codec import decode
from flatout.records.limits import Limits, Measured
from flatout.report.limits import draw_limits
from flatout.report.roofline import LEFT, TOP, WIDTH, Plot, limits_page

RECORDED = Path(__file__).parents[2] / "recorded" / "limits_h200.json"
EVIL = 'H200</title><script>alert(1)</script>[bold red]\x1b[2J"onload=x\n{{7*7}}'


@pytest.fixture
def limits() -> Limits:
    return decode(RECORDED.read_bytes(), RECORDED, "limits", 1, Limits, remedy="record it again")


def drawn(limits: Limits, width: int = 120, encoding: str = "utf-8") -> str:
    buffer = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict")
    draw_limits(limits, Console(file=buffer, width=width, highlight=False, markup=False))
    buffer.flush()
    return buffer.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]


def test_measured_sustained_and_rated_stand_side_by_side(limits: Limits) -> None:
    text = drawn(limits)
    row = next(line for line in text.splitlines() if line.startswith("bf16 products"))
    assert re.fullmatch(r"bf16 products +80\d TFLOP/s +6\d\d TFLOP/s +989 TFLOP/s +8\d % *", row)
    assert re.search(r"int8 products +9\d\d TOP/s", text)
    assert re.search(r"memory copy +4\.31 TB/s +4\.80 TB/s +90 %", text)
    assert "held down by power_cap" in text
    assert "times faster on the device" in text


@pytest.mark.parametrize("width", [20, 40, 72, 79, 80, 81, 200])
def test_every_width_shows_the_figures_in_ascii_without_overflow(limits: Limits, width: int) -> None:
    text = drawn(limits, width, "ascii")
    assert "TFLOP/s" in text
    for line in text.splitlines():
        assert len(line) <= width


def test_what_was_not_measured_is_said_with_its_reason(limits: Limits) -> None:
    unknown = {"matmul_flops_per_s.fp8": "no tensor cores for fp8 at compute capability 8.0"}
    partly = dataclasses.replace(limits, measured=Measured(unknown=unknown), rated=None, matmuls=(), cpu=None)
    text = drawn(partly)
    assert "fp8: not measured (no tensor cores for fp8 at compute capability 8.0)" in text
    assert "rated: unknown" in text


def test_names_from_outside_are_inert_in_a_terminal(limits: Limits) -> None:
    evil = dataclasses.replace(limits, device=dataclasses.replace(limits.device, name=EVIL))
    text = drawn(evil, 200)
    assert "\x1b[2J" not in text
    assert "[bold red]" in text  # shown, not obeyed


class Collector(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def parsed(page: str) -> list[tuple[str, dict[str, str | None]]]:
    collector = Collector()
    collector.feed(page)
    return collector.tags


def test_the_page_is_one_file_without_script_or_network(limits: Limits) -> None:
    page = limits_page(limits)
    tags = parsed(page)
    assert not {tag for tag, _ in tags} & {"script", "link", "img", "iframe", "object"}
    assert not [attrs for _, attrs in tags if attrs.keys() & {"src", "href"}]
    assert "url(" not in page
    assert "@import" not in page


def test_the_page_draws_a_roof_and_a_ridge_for_each_precision(limits: Limits) -> None:
    tags = parsed(limits_page(limits))
    roofs = [attrs for tag, attrs in tags if tag == "polyline" and attrs.get("class") == "roof"]
    rated = [attrs for tag, attrs in tags if tag == "polyline" and attrs.get("class") == "rated"]
    assert len(roofs) == len(limits.measured.matmul_flops_per_s) == 6
    assert len(rated) == 6
    assert len([tag for tag, _ in tags if tag == "circle"]) == 6
    for roof in roofs:
        points = [tuple(map(float, point.split(","))) for point in (roof["points"] or "").split()]
        assert len(points) == 3
        assert points[0][1] > points[1][1]  # up to the ridge
        assert points[1][1] == points[2][1]  # then flat


def test_names_from_outside_are_inert_in_the_page(limits: Limits) -> None:
    evil = dataclasses.replace(limits, device=dataclasses.replace(limits.device, name=EVIL))
    page = limits_page(evil)
    assert "<script" not in page
    assert "49" not in re.findall(r"<h1>(.*?)</h1>", page, re.DOTALL)[0]
    assert not [attrs for _, attrs in parsed(page) if "onload" in attrs]


def test_a_page_without_any_figure_still_opens(limits: Limits) -> None:
    empty = dataclasses.replace(limits, measured=Measured(), rated=None, matmuls=(), cpu=None)
    assert "unknown" in limits_page(empty)


def test_the_ridge_stands_where_both_limits_meet() -> None:
    plot = Plot(1e11, 1e15)
    bandwidth, peak = 1e12, 1e14
    start, ridge, end = (tuple(map(float, point.split(","))) for point in plot.roof(peak, bandwidth).split())
    assert ridge == (plot.x(100), plot.y(1e14))
    assert start == (plot.x(0.1), plot.y(1e11))
    assert end[0] == LEFT + WIDTH
    assert plot.y(1e15) == TOP
