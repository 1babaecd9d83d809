"""Charts as SVG: values to places, round ticks, lines that break where nothing is known, labels that fit."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# Beyond these, differences and their squares leave what a float can hold.
LARGEST, SMALLEST = 1e100, 1e-90
_LABEL_LONGEST, _LABEL_ADVANCE, _LABEL_HEIGHT = 26, 7.0, 15.0


@dataclasses.dataclass(frozen=True)
class Tick:
    """A line of the grid, with its label."""

    at: float
    label: str


@dataclasses.dataclass(frozen=True)
class Shape:
    """A line or an area of a chart, as SVG points."""

    kind: str
    points: str


@dataclasses.dataclass(frozen=True)
class Dot:
    """A lever among the predicted and measured; `label` is empty where there is no room for it."""

    x: float
    y: float
    verdict: str
    title: str
    whisker: tuple[float, float] | None
    label: str
    label_x: float
    label_y: float
    anchor: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chart:
    """A plot in the SVG's own units."""

    title: str
    x_label: str
    y_label: str
    width: float
    height: float
    area: dict[str, float]
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    areas: list[Shape] = dataclasses.field(default_factory=list)
    lines: list[Shape] = dataclasses.field(default_factory=list)
    dots: list[Dot] = dataclasses.field(default_factory=list)


class Axis:
    """Turns values into places, on a linear or a log scale."""

    def __init__(
        self, values: Iterable[float], start: float, end: float, *, log: bool = False, pad: float = 0.06
    ) -> None:
        self._log = log
        self._start, self._end = start, end
        scaled = [self._scaled(value) for value in values]
        low, high = min(scaled), max(scaled)
        near = max(1e-9 * max(abs(low), abs(high)), SMALLEST)
        # Equal values are a line through the middle, not a division by nothing.
        room = pad * (high - low) if high - low > near else (0.05 * abs(high) or 1e-3)
        self._low, self._high = low - room, high + room

    def at(self, value: float) -> float:
        """The place of a value."""
        share = (self._scaled(value) - self._low) / (self._high - self._low)
        return round(self._start + (self._end - self._start) * share, 1)

    def ticks(self, unit: str = "") -> list[Tick]:
        """A handful of lines at round values."""
        low, high = (10**self._low, 10**self._high) if self._log else (self._low, self._high)
        if self._log:
            for mantissas in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
                powers = range(math.floor(self._low), math.ceil(self._high) + 1)
                values = [m * 10.0**p for p in powers for m in mantissas if low <= m * 10.0**p <= high]
                if len(values) >= 3:
                    values = values[:: math.ceil(len(values) / 8)]
                    return [Tick(self.at(value), f"{short(value)}{unit}") for value in values]
        step = _round_step((high - low) / 4)
        first = math.ceil(low / step)
        values = [number * step for number in range(first, first + 10) if number * step <= high]
        digits = max(0, -math.floor(math.log10(step) + 1e-9))
        plain = digits <= 4 and max(abs(low), abs(high)) < 1e5
        return [
            Tick(self.at(value), (f"{value:.{digits}f}" if plain else short(value)) + unit)
            for value in values
        ]

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self._log else value


def labelled(dots: Sequence[Dot], area: Mapping[str, float]) -> list[Dot]:
    """Labels beside their dots, where they hide neither a dot nor another label; else none at all."""
    taken = [(dot.x - 6, dot.y - 6, dot.x + 6, dot.y + 6) for dot in dots]
    placed = []
    for dot in dots:
        label = dot.label if len(dot.label) <= _LABEL_LONGEST else dot.label[: _LABEL_LONGEST - 1] + "…"
        wide = _LABEL_ADVANCE * len(label)
        found = ("", 0.0, 0.0, "start")
        for down in (0.0, -14.0, 14.0, -26.0, 26.0):
            for anchor, x in (("start", dot.x + 9), ("end", dot.x - 9)):
                left = x if anchor == "start" else x - wide
                y = dot.y + down
                box = (left, y - _LABEL_HEIGHT / 2, left + wide, y + _LABEL_HEIGHT / 2)
                inside = area["left"] <= box[0] and box[2] <= area["right"]
                inside = inside and area["top"] <= box[1] and box[3] <= area["bottom"]
                if not found[0] and inside and not any(_overlap(box, other) for other in taken):
                    found = (label, round(x, 1), round(y + 4, 1), anchor)
                    taken.append(box)
        label, label_x, label_y, anchor = found
        placed.append(dataclasses.replace(dot, label=label, label_x=label_x, label_y=label_y, anchor=anchor))
    return placed


def _overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def unbroken(values: Sequence[Any]) -> list[list[tuple[int, Any]]]:
    """Steps and values, cut where one is missing: a line across a gap would be an invention."""
    runs: list[list[tuple[int, Any]]] = [[]]
    for number, value in enumerate(values, start=1):
        if value is None:
            runs.append([])
        else:
            runs[-1].append((number, value))
    return [run for run in runs if run]


def points(x: Axis, y: Axis, run: Sequence[tuple[float, float]]) -> str:
    """Steps and values as SVG points."""
    # A lone point is a line of no length, which round caps make visible.
    both = [f"{x.at(step)},{y.at(value)}" for step, value in run]
    return " ".join(both if len(both) > 1 else both * 2)


def drawable(value: float | None) -> float | None:
    """The value where it has a place in a picture; nearly nothing is nothing."""
    if value is None or not math.isfinite(value) or abs(value) > LARGEST:
        return None
    return value if abs(value) > SMALLEST else 0.0


def positive(value: float | None) -> float | None:
    """The same, where it has a logarithm."""
    known = drawable(value)
    return known if known is not None and known > 0 else None


def _round_step(rough: float) -> float:
    """The next 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(m * power for m in (1.0, 2.0, 5.0, 10.0) if m * power >= rough * (1 - 1e-9))


def short(value: float, digits: int = 3) -> str:
    """A number of any size: `0.25`, `3.1e-6`, `1,000`."""
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else "infinite"
    if 1000 <= abs(value) < 1e6:
        return f"{value:,.0f}"
    mantissa, _, exponent = f"{value:.{digits}g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa
