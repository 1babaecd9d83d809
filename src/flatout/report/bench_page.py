"""`bench` as one offline page: answers and waiting over the load."""

from flatout.records.bench import Bench, LoadPoint
from flatout.report.bench import headline, load_words
from flatout.report.charts import Axis, Chart, Shape, points
from flatout.report.page import environment

_AREA = {"left": 66.0, "top": 14.0, "right": 548.0, "bottom": 236.0}


def bench_page(bench: Bench) -> str:
    """One self-contained HTML page: no script, no network, light and dark."""
    return (
        environment()
        .get_template("bench.html.j2")
        .render(
            bench=bench,
            headline=headline(bench),
            charts=[chart for chart in (_answers(bench), _waiting(bench)) if chart is not None],
            words=[load_words(bench, one) for one in bench.points],
        )
    )


def _answers(bench: Bench) -> Chart | None:
    rows = [(one.load, one.answered_per_s) for one in bench.points]
    return _chart(bench, "Answers a second", "answers a second", {"answers": rows}, log=False)


def _waiting(bench: Bench) -> Chart | None:
    known = [(one.load, one.latency_ms) for one in bench.points if one.latency_ms is not None]
    rows = {name: [(load, getattr(times, name)) for load, times in known] for name in ("p50", "p99")}
    return _chart(bench, "Latency", "milliseconds", rows, log=True) if known else None


def _chart(
    bench: Bench, title: str, unit: str, rows: dict[str, list[tuple[float, float]]], *, log: bool
) -> Chart | None:
    loads = [load for run in rows.values() for load, _ in run]
    values = [value for run in rows.values() for _, value in run if value > 0]
    if not loads or not values:
        return None
    spread = max(loads) > 8 * min(loads)
    x = Axis(loads, _AREA["left"], _AREA["right"], log=spread)
    y = Axis(values if log else [0.0, *values], _AREA["bottom"], _AREA["top"], log=log)
    return Chart(
        title=title,
        x_label="requests a second" if bench.loop == "open" else "requests at a time",
        y_label=unit,
        width=560.0,
        height=290.0,
        area=_AREA,
        x_ticks=x.ticks(),
        y_ticks=y.ticks(),
        lines=[Shape(name, points(x, y, run)) for name, run in rows.items()],
        areas=_marked(bench.points, bench.knee, x),
    )


def _marked(loads: tuple[LoadPoint, ...], knee: int | None, x: Axis) -> list[Shape]:
    if knee is None:
        return []
    at = x.at(loads[knee].load)
    return [Shape("knee", f"{at},{_AREA['top']} {at},{_AREA['bottom']}")]
