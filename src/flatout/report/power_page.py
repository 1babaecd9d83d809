"""`power` as one offline page: energy and pace over the cap, in a picture, and the figures below it."""

from flatout.records.power import PowerSweep
from flatout.report.charts import Axis, Chart, Dot, Shape, labelled, points
from flatout.report.page import environment
from flatout.report.power import headline

_AREA = {"left": 62.0, "top": 14.0, "right": 660.0, "bottom": 240.0}


def power_page(sweep: PowerSweep) -> str:
    """One self-contained HTML page: no script, no network, light and dark."""
    return (
        environment()
        .get_template("power.html.j2")
        .render(sweep=sweep, headline=headline(sweep), chart=power_chart(sweep))
    )


def power_chart(sweep: PowerSweep) -> Chart | None:
    """Energy for the same work and step time, both over those at the limit that was found."""
    known = sorted(
        (point for point in sweep.points if point.energy_ratio is not None and point.slowdown is not None),
        key=lambda point: point.cap_mw,
    )
    if len(known) < 2:
        return None
    energy = [(point.cap_mw / 1000, 100 * (point.energy_ratio or 1.0)) for point in known]
    time = [(point.cap_mw / 1000, 100 * (1 + (point.slowdown or 0.0))) for point in known]
    x = Axis([cap for cap, _ in energy], _AREA["left"], _AREA["right"])
    y = Axis([value for _, value in (*energy, *time)], _AREA["bottom"], _AREA["top"])
    dots = [
        Dot(
            x.at(cap),
            y.at(value),
            "best" if point.cap_mw == sweep.best_mw else "tried",
            f"{cap:g} W: {value:.1f} % of the energy, steps {100 * (point.slowdown or 0):+.1f} %",
            None,
            f"{cap:g} W" if point.cap_mw == sweep.best_mw else "",
            0.0,
            0.0,
            "start",
        )
        for point, (cap, value) in zip(known, energy, strict=True)
    ]
    return Chart(
        title="Energy and step time over the power cap",
        x_label="power cap, W",
        y_label="% of the found limit's",
        width=680.0,
        height=284.0,
        area=_AREA,
        x_ticks=x.ticks(),
        y_ticks=y.ticks(),
        lines=[Shape("energy", points(x, y, energy)), Shape("time", points(x, y, time))],
        dots=labelled(dots, _AREA),
    )
