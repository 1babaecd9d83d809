"""`fit` for a terminal: the peak, what holds it, and on which GPUs there is room for it."""

from rich.console import Console
from rich.table import Table

from flatout.records.fit import Fit, FitOption
from flatout.records.words import memory_size, percent
from flatout.report.plain import inert, line

_BAR = 24


def draw_fit(fit: Fit, console: Console) -> None:
    """Print it all."""
    peak, reserved = memory_size(fit.peak_bytes), memory_size(fit.reserved_bytes)
    console.print(line(f"{peak} at the peak, {reserved} reserved, within {percent(fit.error_bar)}", "bold"))
    if fit.where is not None:
        console.print(line(f"the peak is reached at {inert(fit.where)}"))
    console.print()
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("what holds it")
    table.add_column("", justify="right")
    table.add_column("")
    parts = {name: getattr(fit.parts, name) for name in fit.parts.__dataclass_fields__}
    whole = max(1, *parts.values())
    for name, size in parts.items():
        if size:
            table.add_row(line(name), line(memory_size(size)), line("█" * round(_BAR * size / whole)))
    console.print(table)
    console.print()
    gpus = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("GPU", "memory", "needed", "", "an hour"):
        gpus.add_column(name, justify="left" if name in ("GPU", "") else "right")
    for option in fit.options:
        price = f"{option.usd_per_hour:.2f} USD" if option.usd_per_hour is not None else ""
        style = {True: "green", False: "red", None: "yellow"}[option.fits]
        cells = (option.gpu, memory_size(option.memory_bytes), memory_size(option.peak_bytes))
        gpus.add_row(*map(line, cells), line(_verdict(option), style), line(price))
    console.print(gpus)
    for note in fit.notes:
        console.print(line(inert(note), "dim"))
    console.print(line(f"no GPU was used; it took {fit.took_s:.0f} s", "dim"))


def _verdict(option: FitOption) -> str:
    if option.fits is None:
        return "too close to say"
    if option.fits and option.is_tight:
        return "fits, barely"
    return "fits" if option.fits else "does not fit"
