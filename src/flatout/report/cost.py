"""`cost` for a terminal: dollars a step, a sample, a token and an epoch, and hours that were not used."""

from rich.console import Console
from rich.table import Table

from flatout.records.energy import Cost, CostReport, RunCost
from flatout.records.index import DIED
from flatout.records.words import duration, percent
from flatout.report.cost_words import CAUSES
from flatout.report.plain import inert, is_narrow, line

_JOULES_A_KWH = 3.6e6
_OVER = ("ended", DIED)


def draw_cost(report: CostReport, console: Console) -> None:
    """One run in full, or a line for each of several and their sum."""
    if len(report.runs) == 1:
        _draw_run(report.runs[0], console)
        return
    unused = report.unused_gpu_hours / report.gpu_hours if report.gpu_hours else 0.0
    total = ("all", _hours(report.gpu_hours), percent(unused), dollars(report.usd), "", "")
    rows = [*map(_row, report.runs), total]
    if is_narrow(console):
        for row in rows:
            console.print(line(" ".join(filter(None, row))))
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    room = console.width
    for place, heading in enumerate(("run", "GPU hours", "not used", "USD", "USD a step")):
        # An id or a figure that is cut is none: what a run is called has what is left.
        width = max(len(text) for text in (*heading.split(), *(row[place] for row in rows)))
        table.add_column(heading, justify="right" if place else "left", min_width=width, max_width=width)
        room -= width + 2
    table.add_column("", overflow="fold", max_width=max(room, 1))
    for row in rows:
        table.add_row(*(line(cell, "bold" if row is total else "") for cell in row))
    console.print(table)


def dollars(usd: float | None) -> str:
    """Two digits behind the point, and more where that would be nothing."""
    if usd is None:
        return "unknown"
    return f"{usd:.2f}" if usd >= 0.1 or usd == 0 else f"{usd:.3g}"


def _hours(hours: float, *, digits: int = 3) -> str:
    return f"{hours:,.0f}" if hours >= 999.5 else f"{hours:.{digits}g}"


def _row(run: RunCost) -> tuple[str, ...]:
    if run.cost is None:
        return (run.run, "", "", "", "", inert(run.unknown["cost"]))
    share = run.cost.unused_share
    return (
        run.run,
        _hours(run.cost.gpu_hours),
        percent(share) if share is not None else "",
        dollars(run.cost.usd),
        dollars(run.cost.usd_per_step),
        inert(run.name),
    )


def _draw_run(run: RunCost, console: Console) -> None:
    console.print(line(f"{run.name} ({run.run}, {run.state})", "bold"))
    if run.cost is None:
        console.print(line(f"No cost: {run.unknown['cost']}"))
        return
    cost = run.cost
    hours = (
        f"{_hours(cost.gpu_hours, digits=4)} GPU hours on {cost.gpus} {'GPU' if cost.gpus == 1 else 'GPUs'}"
    )
    each = cost.price.usd_per_gpu_hour
    price = f" at {each:.2f} USD ({cost.price.source})" if each is not None else ""
    console.print(line(f"{hours}{price}: {dollars(cost.usd)}{' USD' if cost.usd is not None else ''}"))
    if each is None:
        console.print(line(f"  no price: {cost.price.source}; give yours with --usd-per-hour", "yellow"))
    console.print()
    console.print(_figures(run, cost))
    _draw_unused(cost, console)
    if run.throttled_s:
        said = ", ".join(f"{reason} {duration(seconds)}" for reason, seconds in run.throttled_s.items())
        console.print(line(f"Clocks were limited by: {said}", "dim"))


def _figures(run: RunCost, cost: Cost) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(justify="left")
    table.add_column(justify="right")
    table.add_column(justify="left")
    rows = (
        ("a step", "usd_per_step"),
        ("a thousand samples", "usd_per_thousand_samples"),
        ("a million tokens", "usd_per_million_tokens"),
        ("an epoch", "usd_per_epoch"),
        *([("to the end", "usd_to_end")] if run.state not in _OVER else []),
    )
    for name, field in rows:
        usd = getattr(cost, field)
        table.add_row(
            line(name),
            line(f"{dollars(usd)} USD" if usd is not None else "unknown"),
            line("" if usd is not None else cost.unknown.get(field, ""), "dim"),
        )
    if cost.energy.joules is not None:
        kwh = f"{cost.energy.joules / _JOULES_A_KWH:.3g} kWh in all, from the {cost.energy.source}"
        per = f"{cost.joules_per_step:.4g} J" if cost.joules_per_step is not None else "unknown"
        table.add_row(line("energy a step"), line(per), line(kwh, "dim"))
    return table


def _draw_unused(cost: Cost, console: Console) -> None:
    unused = sum(cost.unused_gpu_hours.values())
    console.print()
    if not unused:
        console.print(line("Where hours went that were not used is not known.", "dim"))
        return
    usd = f", {dollars(cost.usd_unused)} USD" if cost.usd_unused is not None else ""
    share = percent(cost.unused_share or 0.0)
    console.print(line(f"Paid and not used for steps: {_hours(unused)} GPU hours ({share}{usd})", "bold"))
    for cause, hours in sorted(cost.unused_gpu_hours.items(), key=lambda one: -one[1]):
        console.print(
            line(f"  {CAUSES[cause]:<30}{percent(hours / cost.gpu_hours):>7}   {_hours(hours)} GPU hours")
        )
    if cost.kernels_absent_gpu_hours is not None:
        idle = cost.kernels_absent_gpu_hours
        console.print(line(f"No kernel ran at all for {_hours(idle)} GPU hours, whatever the cause.", "dim"))
