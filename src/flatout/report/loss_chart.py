"""The losses of the profiled steps: a job that was watched must still have learned."""

import math
from collections.abc import Sequence

from flatout.report.charts import Axis, Chart, Shape, drawable, points

_POINTS = 600


def loss_chart(losses: Sequence[float | None]) -> Chart | None:
    """A small line; None where no loss was seen."""
    runs = _runs([drawable(value) for value in losses])
    values = [value for run in runs for _, value in run]
    if not values:
        return None
    area = {"left": 62.0, "top": 12.0, "right": 548.0, "bottom": 156.0}
    x = Axis((1.0, float(max(len(losses), 2))), area["left"], area["right"])
    y = Axis(values, area["bottom"], area["top"], log=min(values) > 0 and max(values) > 50 * min(values))
    return Chart(
        title="Loss",
        x_label="step",
        y_label="",
        width=560.0,
        height=198.0,
        area=area,
        x_ticks=[tick for tick in x.ticks() if tick.label.replace(",", "").isdigit() and tick.label != "0"],
        y_ticks=y.ticks(),
        lines=[Shape("loss", points(x, y, run)) for run in runs],
    )


def _runs(values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    """Unbroken stretches of steps and losses; of many steps, the lowest and the highest of each few."""
    few = max(1, math.ceil(2 * len(values) / _POINTS)) if len(values) > _POINTS else 1
    runs: list[list[tuple[int, float]]] = [[]]
    for start in range(0, len(values), few):
        known = [
            (start + place + 1, value)
            for place, value in enumerate(values[start : start + few])
            if value is not None
        ]
        if known:
            ends = {min(known, key=lambda one: one[1]), max(known, key=lambda one: one[1])}
            runs[-1] += sorted(ends)
        else:
            runs.append([])
    return [run for run in runs if run]
