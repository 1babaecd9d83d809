"""The roofline picture: what each precision can reach at each arithmetic intensity, in one offline page."""

import dataclasses
import math

from flatout.records.limits import Limits
from flatout.records.words import three_digits
from flatout.report.charts import Tick
from flatout.report.limits import operations
from flatout.report.link import figures, notes, slow_words
from flatout.report.page import environment

# The plot's area in the SVG's own units; the page scales it.
LEFT, TOP, WIDTH, HEIGHT = 92.0, 18.0, 770.0, 400.0
_LOWEST_INTENSITY, _HIGHEST_INTENSITY = 0.1, 1e5
# One colour a precision, told apart also by colour-blind readers and in both themes (Okabe and Ito).
_COLOURS = {
    "fp8": "#CC79A7",
    "int8": "#8E6BBF",
    "bf16": "#0072B2",
    "fp16": "#56B4E9",
    "tf32": "#009E73",
    "fp32": "#D55E00",
}


@dataclasses.dataclass(frozen=True)
class Roof:
    """One precision's ceiling: a slope up to the ridge, then flat."""

    name: str
    colour: str
    points: str
    rated_points: str
    ridge_x: float
    ridge_y: float
    ridge: str
    label: str
    label_y: float


class Plot:
    """Turns intensity (FLOP per byte) and rate (FLOP/s) into places, both on log scales."""

    def __init__(self, lowest: float, highest: float) -> None:
        self._y0 = math.floor(math.log10(lowest))
        self._y1 = max(math.ceil(math.log10(highest)), self._y0 + 1)
        self._x0, self._x1 = math.log10(_LOWEST_INTENSITY), math.log10(_HIGHEST_INTENSITY)

    def x(self, intensity: float) -> float:
        """The place of an intensity."""
        return round(LEFT + WIDTH * (math.log10(intensity) - self._x0) / (self._x1 - self._x0), 1)

    def y(self, rate: float) -> float:
        """The place of a rate; higher is up."""
        return round(TOP + HEIGHT * (self._y1 - math.log10(rate)) / (self._y1 - self._y0), 1)

    def roof(self, peak: float, bandwidth: float) -> str:
        """The polyline of min(peak, bandwidth x intensity), cut at the plot's lower edge."""
        floor = 10.0**self._y0
        start = max(_LOWEST_INTENSITY, floor / bandwidth)
        ridge = min(max(peak / bandwidth, start), _HIGHEST_INTENSITY)
        corners = [
            (start, bandwidth * start),
            (ridge, min(peak, bandwidth * ridge)),
            (_HIGHEST_INTENSITY, peak),
        ]
        return " ".join(f"{self.x(intensity)},{self.y(rate)}" for intensity, rate in corners)

    def rate_ticks(self) -> list[Tick]:
        """One line a decade of the rate."""
        return [Tick(self.y(10.0**p), _decade(p)) for p in range(self._y0, self._y1 + 1)]

    def intensity_ticks(self) -> list[Tick]:
        """One line a decade of the intensity."""
        return [Tick(self.x(10.0**p), f"{10.0**p:g}" if p < 4 else f"{10**p:,}") for p in range(-1, 6)]


def _decade(power: int) -> str:
    """10^13 as "10 TFLOP/s"."""
    unit = {6: "M", 9: "G", 12: "T", 15: "P"}[power // 3 * 3]
    return f"{10 ** (power % 3)} {unit}FLOP/s"


def limits_page(limits: Limits) -> str:
    """One self-contained HTML page: no script, no network, light and dark."""
    roofs, plot, cpu = _roofs(limits)
    return (
        environment()
        .get_template("limits.html.j2")
        .render(
            limits=limits,
            roofs=roofs,
            cpu_points=cpu,
            rate_ticks=plot.rate_ticks(),
            intensity_ticks=plot.intensity_ticks(),
            area={"left": LEFT, "top": TOP, "right": LEFT + WIDTH, "bottom": TOP + HEIGHT},
            operations=operations,
            link_figures=figures(limits, limits.link) if limits.link else [],
            link_notes=notes(limits.link) if limits.link else [],
            slow_words=slow_words,
            colours=_COLOURS,
        )
    )


def _roofs(limits: Limits) -> tuple[list[Roof], Plot, str]:
    measured, rated = limits.measured, limits.rated
    bandwidth = measured.memory_bytes_per_s
    peaks = measured.matmul_flops_per_s
    cpu = limits.cpu.measured if limits.cpu else None
    heights = [*peaks.values(), *(rated.dense_flops_per_s.values() if rated else ())]
    slopes = [rate for rate in (bandwidth, cpu.memory_bytes_per_s if cpu else None) if rate]
    plot = Plot(min([*slopes, *heights], default=1e9), max(heights, default=1e12))
    roofs = []
    if bandwidth is not None:
        for dtype, peak in sorted(peaks.items(), key=lambda item: -item[1]):
            promised = rated.dense_flops_per_s.get(dtype) if rated else None
            roofs.append(
                Roof(
                    name=dtype,
                    colour=_COLOURS.get(dtype, "#888888"),
                    points=plot.roof(peak, bandwidth),
                    rated_points=plot.roof(promised, rated.memory_bytes_per_s) if rated and promised else "",
                    ridge_x=plot.x(min(max(peak / bandwidth, _LOWEST_INTENSITY), _HIGHEST_INTENSITY)),
                    ridge_y=plot.y(peak),
                    ridge=three_digits(peak / bandwidth),
                    label=f"{dtype} {operations(dtype, peak)}",
                    label_y=plot.y(peak),
                )
            )
    return _spread_labels(roofs), plot, _cpu_roof(plot, limits)


def _cpu_roof(plot: Plot, limits: Limits) -> str:
    if limits.cpu is None or limits.cpu.measured.memory_bytes_per_s is None:
        return ""
    peak = max(limits.cpu.measured.matmul_flops_per_s.values(), default=0.0)
    return plot.roof(peak, limits.cpu.measured.memory_bytes_per_s) if peak else ""


def _spread_labels(roofs: list[Roof], gap: float = 15.0) -> list[Roof]:
    """Push labels of nearly equal roofs apart, downwards, so that each can be read."""
    placed: list[Roof] = []
    lowest = -math.inf
    for roof in roofs:
        lowest = max(roof.label_y, lowest + gap)
        placed.append(dataclasses.replace(roof, label_y=round(lowest, 1)))
    return placed
