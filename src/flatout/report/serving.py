"""`serve` for a terminal: where it listens, what it takes, and why batches are what they are."""

from rich.console import Console
from rich.table import Table

from flatout.records.serving import Serving
from flatout.records.words import duration
from flatout.report.figures import number
from flatout.report.plain import inert, line

_BAR = 20


def draw_serving(serving: Serving, console: Console) -> None:
    """Print it all."""
    console.print(line(f"{serving.model} on {serving.device}, ready at {serving.url}", "bold"))
    for spec in serving.inputs:
        console.print(line(f"  takes {inert(spec)}"))
    sizing = serving.sizing
    if serving.rows is not None:
        console.print(
            line(f"  {serving.rows} texts at once, of up to {serving.context} tokens: {sizing.reason}")
        )
    else:
        console.print(line(f"  batches of up to {sizing.most}: {inert(sizing.reason)}"))
        console.print(
            line(
                f"  up to {sizing.queue} may wait, so that an accepted request takes at most about "
                f"{duration(sizing.latency_limit_s)}; more get a 429"
            )
        )
    for note in serving.notes:
        console.print(line(f"  {inert(note)}"))
    if sizing.tried:
        console.print(_tried(serving))
    console.print(line(f"try: flatout bench {serving.url}", "dim"))


def _tried(serving: Serving) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 2), header_style="bold")
    for name in ("batch", "time", "items/s", ""):
        table.add_column(name, justify="left" if not name else "right")
    fastest = max(one.items_per_s for one in serving.sizing.tried)
    for one in serving.sizing.tried:
        cells = (
            str(one.batch),
            duration(one.seconds),
            number(one.items_per_s),
            "█" * round(_BAR * one.items_per_s / fastest),
        )
        table.add_row(*(line(cell, "bold" if one.batch == serving.sizing.most else "") for cell in cells))
    return table
