"""Lessons as one offline page: the answer first, then the picture, what one sees in it, and what to do."""

import dataclasses
import math

from flatout.records.learn import BarPicture, CurvePicture, Learned, Origin, Picture
from flatout.report.charts import Axis, Chart, Dot, Shape, Tick, points, positive
from flatout.report.learn import bar_shares, device_words
from flatout.report.learn_words import ORIGINS, figure_words
from flatout.report.page import environment

_AREA = {"left": 120.0, "top": 44.0, "right": 592.0, "bottom": 250.0}
_WIDTH, _HEIGHT = 630.0, 296.0
# Names of marks: about how wide a letter is, and in how many rows they may stand.
_LETTER, _MARK_ROWS = 7.5, 2
_MANY_DECADES = 300.0
_COLOURS = ("first", "second", "third")
# Lines of the grid that a phone has room for.
_TICKS = 6


@dataclasses.dataclass(frozen=True)
class BarRow:
    """One bar, in percent of the longest."""

    label: str
    words: str
    share: float
    origin: Origin


def learn_page(learned: Learned) -> str:
    """One self-contained HTML page: no script, no network, light and dark."""
    return (
        environment()
        .get_template("learn.html.j2")
        .render(
            learned=learned,
            headline="What this machine teaches" if len(learned.lessons) > 1 else learned.lessons[0].title,
            device=device_words(learned.device),
            bars=bar_rows,
            chart=curve_chart,
            keys=curve_keys,
            origins=ORIGINS,
            figure_words=figure_words,
        )
    )


def bar_rows(picture: BarPicture) -> list[BarRow]:
    """The bars of a picture, on its scale."""
    shares = bar_shares([bar.value for bar in picture.bars], picture.scale)
    return [
        BarRow(
            label=bar.label,
            words=bar.words or figure_words(bar.value, picture.unit),
            share=round(100 * share, 2),
            origin=bar.origin,
        )
        for bar, share in zip(picture.bars, shares, strict=True)
    ]


def curve_keys(picture: CurvePicture) -> list[tuple[str, str]]:
    """(colour, name) of each curve; nothing where there is one only."""
    if len(picture.curves) < 2:
        return []
    return [
        (
            _COLOURS[place % 3],
            ORIGINS[curve.origin]
            if curve.name == curve.origin
            else f"{curve.name} ({ORIGINS[curve.origin]})",
        )
        for place, curve in enumerate(picture.curves)
    ]


def curve_chart(picture: Picture) -> Chart | None:
    """The curves on axes; None where nothing has a place."""
    if not isinstance(picture, CurvePicture):
        return None
    runs = [
        [(x, y) for x, y in curve.points if positive(x) is not None and positive(y) is not None]
        for curve in picture.curves
    ]
    every = [point for run in runs for point in run]
    if len(every) < 2:
        return None
    x = Axis([x for x, _ in every], _AREA["left"], _AREA["right"], log=True, pad=0.02)
    values = [y for _, y in every] + ([] if picture.y_scale == "log" else [0.0])
    y = Axis(values, _AREA["bottom"], _AREA["top"], log=picture.y_scale == "log")
    return Chart(
        title=picture.title,
        x_label=picture.x_label,
        y_label="",  # the title and the units say it, and a phone has no room
        width=_WIDTH,
        height=_HEIGHT,
        area=_AREA,
        x_ticks=_x_ticks(picture, runs[0], x),
        y_ticks=_y_ticks(picture, values, y),
        lines=[Shape(_COLOURS[place % 3], points(x, y, run)) for place, run in enumerate(runs) if run],
        dots=[
            *(_dot(picture, x, y, at, place) for place, run in enumerate(runs[:1]) for at in run),
            *_marks(picture, x),
        ],
    )


def _dot(picture: CurvePicture, x: Axis, y: Axis, at: tuple[float, float], place: int) -> Dot:
    title = f"{figure_words(at[0], picture.x_unit)}: {figure_words(at[1], picture.y_unit)}"
    return Dot(x.at(at[0]), y.at(at[1]), _COLOURS[place], title, None, "", 0.0, 0.0, "start")


def _marks(picture: CurvePicture, x: Axis) -> list[Dot]:
    """Dashed lines from top to bottom, each with its name above it; a name that has no room goes a row up."""
    top, bottom = _AREA["top"], _AREA["bottom"]
    drawn, taken = [], [_AREA["left"] - 2 * _LETTER] * _MARK_ROWS
    for mark in sorted(picture.marks, key=lambda one: one.x):
        at = x.at(mark.x)
        if not _AREA["left"] <= at <= _AREA["right"]:
            continue
        starts = max(_AREA["left"], at - _LETTER * len(mark.label))
        row = next((row for row in range(_MARK_ROWS) if taken[row] + _LETTER < starts), _MARK_ROWS - 1)
        taken[row] = starts + _LETTER * len(mark.label)
        y = top - 9 - 17 * row
        drawn.append(Dot(at, top, "mark", mark.label, (top, bottom), mark.label, starts, y, "start"))
    return drawn


def _x_ticks(picture: CurvePicture, run: list[tuple[float, float]], x: Axis) -> list[Tick]:
    """At measured places, as bytes and batches are no round powers of ten."""
    step = -(-len(run) // _TICKS)
    return [Tick(x.at(at), figure_words(at, picture.x_unit)) for at, _ in run[::step]]


def _y_ticks(picture: CurvePicture, values: list[float], y: Axis) -> list[Tick]:
    """A handful of round values that lie inside; bytes are round in powers of two."""
    low, high = min(values), max(values)
    if picture.y_scale == "linear":
        step = 2.0 ** math.floor(math.log2(high / 3)) if picture.y_unit == "bytes" else high / 4
        inside = [number * step for number in range(1, 8) if number * step <= high]
    elif picture.y_unit == "bytes":
        inside = [2.0**power for power in range(80) if low <= 2.0**power <= high]
    else:
        wide = high / low > _MANY_DECADES
        mantissas = (1.0,) if wide else (1.0, 2.0, 5.0)
        inside = [m * 10.0**p for p in range(-10, 19) for m in mantissas if low <= m * 10.0**p <= high]
    every = -(-len(inside) // _TICKS) if inside else 1
    return [
        Tick(y.at(value), figure_words(value, picture.y_unit)) for value in inside[::every] or [low, high]
    ]
