"""Memory over the updates of an imagined job: who holds it, one on top of the other, up to the peak."""

from collections.abc import Sequence

from flatout.records.fit import MemoryAt
from flatout.records.words import memory_size
from flatout.report.charts import Axis, Chart, Dot, Shape, Tick
from flatout.report.memory_picture import unit_for

# What stays is below what comes and goes.
KINDS = ("workspace", "parameters", "optimizer", "gradients", "activations")
_MOST_UPDATES = 6


def memory_timeline(timeline: Sequence[MemoryAt], update_events: Sequence[int]) -> Chart | None:
    """What is allocated, from the first request to the last; None with fewer than two instants."""
    if len(timeline) < 2 or not max(point.allocated_bytes for point in timeline):
        return None
    highest = max(timeline, key=lambda point: point.allocated_bytes)
    unit, size = unit_for(highest.allocated_bytes)
    area = {"left": 78.0, "top": 24.0, "right": 512.0, "bottom": 196.0}
    events = [*(point.event for point in timeline), *update_events]
    x = Axis(events, area["left"], area["right"], pad=0.0)
    y = Axis([0.0, highest.allocated_bytes / size], area["bottom"], area["top"])
    edge = [f"{x.at(point.event)},{y.at(point.allocated_bytes / size)}" for point in timeline]
    said = memory_size(highest.allocated_bytes)
    at, top = x.at(highest.event), y.at(highest.allocated_bytes / size)
    is_right = at > (area["left"] + area["right"]) / 2
    peak = Dot(
        x=at,
        y=top,
        verdict="peak",
        title=f"the peak: {said}",
        whisker=None,
        label=said,
        label_x=at,
        label_y=round(top - 9, 1),
        anchor="end" if is_right else "start",
    )
    return Chart(
        title="Allocated memory over the updates",
        x_label="requests for memory, in the order of the script",
        y_label="",
        width=560.0,
        height=238.0,
        area=area,
        x_ticks=_updates(x, update_events),
        y_ticks=[tick for tick in y.ticks(f" {unit}") if not tick.label.startswith("-")],
        areas=_layers(timeline, x, y, size),
        lines=[Shape("allocated", " ".join(edge))],
        dots=[peak],
    )


def _layers(timeline: Sequence[MemoryAt], x: Axis, y: Axis, size: int) -> list[Shape]:
    """An area for each kind that holds anything, on top of those before it."""
    below = [0] * len(timeline)
    layers = []
    for kind in KINDS:
        above = [low + point.parts.get(kind, 0) for low, point in zip(below, timeline, strict=True)]
        if above != below:
            upper = [
                (x.at(point.event), y.at(high / size)) for point, high in zip(timeline, above, strict=True)
            ]
            lower = [
                (x.at(point.event), y.at(low / size)) for point, low in zip(timeline, below, strict=True)
            ]
            corners = [*upper, *reversed(lower)]
            layers.append(Shape(kind, " ".join(f"{across},{down}" for across, down in corners)))
        below = above
    return layers


def _updates(x: Axis, update_events: Sequence[int]) -> list[Tick]:
    """Where updates end; of many, some."""
    known = list(enumerate(update_events, start=1))
    some = known[:: max(1, -(-len(known) // _MOST_UPDATES))]
    return [Tick(x.at(event), f"update {number}") for number, event in some]
