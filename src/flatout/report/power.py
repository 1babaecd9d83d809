"""`power` for a terminal: the curve of energy and pace over caps, the best one, and what became of limits."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from flatout.records.power import LimitRestored, PowerHere, PowerNow, PowerPoint, PowerSweep
from flatout.records.thermal import GuardReport
from flatout.records.words import duration
from flatout.report.plain import inert, line

_BAR = 12
_BAD = ("changed by others", "failed", "machine restarted")


def draw_power_here(here: PowerHere, console: Console) -> None:
    """What every GPU draws and may draw, and limits that were put back."""
    draw_restored(here.restored, console)
    if here.devices:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        for name in ("GPU", "", "draws", "limit", "can be set", "heat", "limited by"):
            table.add_column(name, justify="left" if name in ("", "limited by") else "right")
        for device in here.devices:
            table.add_row(*(line(cell) for cell in _cells(device)))
        console.print(table)
        for device in here.devices:
            if device.kept_from_mw is not None:
                text = f"GPU {device.index} was capped by --apply; {device.kept_from_mw / 1000:g} W before"
                console.print(line(f"{text} (flatout power --restore)", "yellow"))
            elif device.limit_mw is None:
                console.print(line(f"GPU {device.index}: {device.unknown['limit_mw']}", "dim"))
    for note in here.notes:
        console.print(line(note, "dim"))


def draw_sweep(sweep: PowerSweep, console: Console) -> None:
    """The answer, the curve, and what it stands on."""
    console.print(line(headline(sweep), "bold"))
    console.print(line(inert(sweep.best_reason)))
    if not sweep.permitted:
        console.print(line(f"Limits may not be set here: {sweep.refusal}.", "yellow"))
        for command in sweep.admin_commands:
            console.print(line(f"  an administrator would type: {command}   # 80 % of the limit"))
        console.print(line("  or run this same command as root: it sweeps, and puts the limits back"))
    console.print()
    if sweep.points:
        console.print(_curve(sweep))
        console.print(line(_footing(sweep), "dim"))
    for note in sweep.notes:
        console.print(line(note, "yellow"))
    draw_restored(sweep.restored, console)
    if sweep.applied:
        console.print(line("The cap stays; `flatout power --restore` puts back what was before."))


def draw_restored(restored: Sequence[LimitRestored], console: Console) -> None:
    """A line each; what is not as it was found stands out."""
    for found in restored:
        console.print(line(found.words(), "yellow" if found.outcome in _BAD else "dim"))


def draw_guard(report: GuardReport, console: Console) -> None:
    """How the watch went, when it is over."""
    changed = f", {report.changes} changes of a cap" if report.mode == "cap" else ""
    console.print(
        line(f"watched for {duration(report.watched_s)}: {report.warnings} warnings{changed}", "bold")
    )
    draw_restored(report.restored, console)


def headline(sweep: PowerSweep) -> str:
    """The answer in a line."""
    base = sweep.points[0] if sweep.points else None
    if sweep.best_mw is not None and base is not None and sweep.best_mw < base.cap_mw:
        verb = "capped at" if sweep.applied else "the best cap is"
        return f"{sweep.job}: {verb} {sweep.best_mw / 1000:g} W (found at {base.cap_mw / 1000:g} W)"
    if base is not None and base.joules_per_step is not None:
        per = f", {base.samples_per_joule:.3g} samples a joule" if base.samples_per_joule else ""
        return f"{sweep.job}: {base.joules_per_step:.4g} J a step{per}"
    if base is not None and base.watts is not None:
        return f"{sweep.job}: {base.watts:.0f} W a GPU"
    return f"{sweep.job}: nothing was measured"


def _curve(sweep: PowerSweep) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("cap", "draws", "step", "slower", "J/step", "samples/J", "energy", " ", "heat"):
        table.add_column(name, justify="left" if name == " " else "right")
    most = max((point.energy_ratio or 0.0 for point in sweep.points), default=0.0) or 1.0
    for point in sorted(sweep.points, key=lambda one: -one.cap_mw):
        style = "bold" if point.cap_mw == sweep.best_mw else "dim" if _too_slow(point, sweep) else ""
        table.add_row(*(line(cell, style) for cell in _row(point, most)))
    return table


def _row(point: PowerPoint, most: float) -> tuple[str, ...]:
    if point.outcome != "measured":
        return (f"{point.cap_mw / 1000:g} W", point.outcome, *[""] * 5, point.reason, "")
    return (
        f"{point.cap_mw / 1000:g} W",
        f"{point.watts:.0f} W" if point.watts is not None else "",
        f"{point.step_s * 1000:.4g} ms" if point.step_s is not None else "",
        f"{point.slowdown:+.1%}" if point.slowdown is not None else "",
        f"{point.joules_per_step:.4g}" if point.joules_per_step is not None else "",
        f"{point.samples_per_joule:.3g}" if point.samples_per_joule is not None else "",
        f"{point.energy_ratio:.0%}" if point.energy_ratio is not None else "",
        "█" * round(_BAR * (point.energy_ratio or 0.0) / most),
        f"{point.temperature_max_c} °C" if point.temperature_max_c is not None else "",
    )


def _too_slow(point: PowerPoint, sweep: PowerSweep) -> bool:
    return point.slowdown is not None and point.slowdown > sweep.slowdown_bound


def _footing(sweep: PowerSweep) -> str:
    pace = {
        "steps": "pace from the job's own steps",
        "memory traffic": "pace from the memory's traffic, which is proportional to the work; under `flatout "
        "run` it would be from steps",
        "none": "its pace is not known: run it under `flatout run`",
    }[sweep.pace_source]
    source = sweep.points[0].energy_source
    drift = f"; the job's own pace moved by {sweep.drift:+.1%} meanwhile" if sweep.drift is not None else ""
    return f"energy from the {source}, {pace}; slower than {sweep.slowdown_bound:.1%} is too slow{drift}"


def _cells(device: PowerNow) -> tuple[str, ...]:
    span = ""
    if device.min_mw is not None and device.max_mw is not None:
        span = f"{device.min_mw / 1000:g} to {device.max_mw / 1000:g} W"
    reasons = [reason for reason in device.throttle_reasons or () if reason != "idle"]
    return (
        str(device.index),
        device.name,
        f"{device.draw_mw / 1000:.0f} W" if device.draw_mw is not None else "unknown",
        f"{device.limit_mw / 1000:g} W" if device.limit_mw is not None else "unknown",
        span,
        f"{device.temperature_c} °C" if device.temperature_c is not None else "unknown",
        ", ".join(reasons),
    )
