"""The guard's evidence on the page: losses drawn beside those of the twins, and its figures in words."""

from collections.abc import Mapping, Sequence
from typing import Any

from flatout.records.tuning import GuardEvidence
from flatout.records.words import percent
from flatout.report.charts import Axis, Chart, Shape, drawable, points, short, unbroken

# What the guard calls things, where the bare key would leave people guessing.
_EVIDENCE_WORDS = {
    "gradients_along": "gradients along the baseline's",
    "change_along": "updates along the baseline's",
    "worst": "worst parameter",
    "parameter": "",
    "of_allowed": "of what rounding explains",
    "twins_apart": "the furthest twin's distance",
    "apart": "the plan's distance",
    "roundoff": "roundoff of the plan",
}


def loss_charts(guard: GuardEvidence) -> list[Chart]:
    """The losses, and how far each lies from the baseline's: rounding is too small to see in the first."""
    written = [drawable(value) for value in guard.curves.get("as written", ())]
    plan = [drawable(value) for value in guard.curves.get("plan", ())]
    twins = [
        [drawable(value) for value in curve]
        for name, curve in guard.curves.items()
        if name not in ("as written", "plan")
    ]
    known = [value for curve in (written, plan, *twins) for value in curve if value is not None]
    charts = []
    if known:
        log = min(known) > 0 and max(known) > 50 * min(known)
        charts.append(_curves("Loss", written, twins, plan, log=log))
    # Runs that did not see the same differ by their samples, which says nothing of rounding.
    if guard.paired and twins:
        apart = [_apart(curve, written) for curve in twins]
        ours = _apart(plan, written)
        if any(value is not None for value in ours):
            charts.append(_curves("Distance from the loss as written", [], apart, ours, log=False))
    return charts


def _curves(
    title: str,
    written: Sequence[float | None],
    twins: Sequence[Sequence[float | None]],
    plan: Sequence[float | None],
    *,
    log: bool,
) -> Chart:
    area = {"left": 62.0, "top": 12.0, "right": 548.0, "bottom": 186.0}
    curves = [written, plan, *twins]
    values = [value for curve in curves for value in curve if value is not None]
    longest = max(len(curve) for curve in curves)
    # Steps are counted from 1, as people count them.
    x = Axis((1.0, float(max(longest, 2))), area["left"], area["right"])
    y = Axis(values, area["bottom"], area["top"], log=log)
    edges: list[tuple[float, float] | None] = []
    for step in range(max((len(twin) for twin in twins), default=0)):
        here = [value for twin in twins if step < len(twin) and (value := twin[step]) is not None]
        edges.append((min(here), max(here)) if here else None)
    bands = [
        Shape(
            "twins",
            points(x, y, [(step, high) for step, (_, high) in run])
            + " "
            + points(x, y, [(step, low) for step, (low, _) in reversed(run)]),
        )
        for run in unbroken(edges)
    ]
    lines = [
        Shape(kind, points(x, y, run))
        for kind, curve in (("written", written), ("plan", plan))
        for run in unbroken(curve)
    ]
    return Chart(
        title=title,
        x_label="step",
        y_label="",
        width=560.0,
        height=228.0,
        area=area,
        x_ticks=[tick for tick in x.ticks() if tick.label.isdigit() and tick.label != "0"],
        y_ticks=y.ticks(),
        areas=bands,
        lines=lines,
    )


def _apart(curve: Sequence[float | None], written: Sequence[float | None]) -> list[float | None]:
    return [
        value - other if value is not None and other is not None else None
        for value, other in zip(curve, written, strict=False)
    ]


def evidence_lines(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What was compared, in words and figures."""
    return [(_key_words(key), _told(value)) for key, value in found.items()]


def _told(value: Any) -> str:
    """Any value of the guard's in a line: numbers short, nested ones one after the other."""
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return short(value, digits=6)
    if isinstance(value, Mapping):
        parts = [
            f"{_share(item)} of what rounding explains"
            if key == "of_allowed" and isinstance(item, float)
            else f"{_key_words(key)} {f'({_told(item)})' if _is_nest(item) else _told(item)}"
            for key, item in value.items()
        ]
        return ", ".join(part.strip() for part in parts) or "nothing"
    if isinstance(value, list | tuple):
        return ", ".join(_told(item) for item in value) or "nothing"
    return str(value)


def _is_nest(value: Any) -> bool:
    return isinstance(value, Mapping | list | tuple)


def _key_words(key: Any) -> str:
    return _EVIDENCE_WORDS.get(key, str(key).replace("_", " "))


def _share(value: float) -> str:
    # A line must not end between a number and its sign.
    return percent(value).replace(" ", "\N{NO-BREAK SPACE}") if 0 <= value < 10 else f"{short(value)} times"
