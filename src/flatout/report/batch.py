"""`batch` for a terminal: throughput and memory over the size, and which one to take."""

from rich.console import Console
from rich.table import Table

from flatout.records.batch import BatchSizes
from flatout.records.words import memory_size, percent
from flatout.report.figures import milliseconds, number
from flatout.report.plain import inert, line

_BAR = 24


def draw_batch(found: BatchSizes, console: Console) -> None:
    """Print it all."""
    best = next(one for one in found.sizes if one.batch == found.best)
    was = next(one for one in found.sizes if one.batch == found.was)
    times = (best.samples_per_s or 0.0) / (was.samples_per_s or 1.0)
    console.print(line(f"batch {found.best}: {times:.2f}x the samples a second of batch {found.was}", "bold"))
    console.print(line(inert(found.reason)))
    console.print()
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("batch", "samples/s", "", "step", "memory", " "):
        table.add_column(name, justify="left" if not name.strip() else "right")
    fastest = max(one.samples_per_s or 0.0 for one in found.sizes) or 1.0
    for one in found.sizes:
        rate = one.samples_per_s or 0.0
        share = (one.peak_bytes or 0) / found.room_bytes if found.room_bytes else 0.0
        cells = (
            str(one.batch),
            number(rate) if one.samples_per_s is not None else "",
            "█" * round(_BAR * rate / fastest),
            milliseconds(one.step_ms) if one.step_ms is not None else "",
            memory_size(one.peak_bytes) if one.peak_bytes is not None else "",
            one.outcome if one.samples_per_s is None or one.outcome != "fits" else _of_room(share),
        )
        table.add_row(*(line(inert(cell), "bold" if one.batch == found.best else "") for cell in cells))
    console.print(table)
    for note in found.notes:
        console.print(line(inert(note), "yellow"))
    if found.consequence:
        console.print(line(inert(found.consequence)))
    if found.room_bytes is not None:
        room = memory_size(found.room_bytes)
        console.print(line(f"{percent(found.headroom)} of {room} stay free", "dim"))
    tried = len(found.sizes)
    console.print(line(f"{tried} sizes were run; set it with {inert(found.option)}", "dim"))


def _of_room(share: float) -> str:
    return f"{percent(share)} of the room" if share else ""
