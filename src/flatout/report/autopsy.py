"""An autopsy for a terminal: what was asked, who held the memory, and what would help."""

from rich.console import Console
from rich.table import Table

from flatout.records.autopsy import Autopsy
from flatout.records.words import memory_size, percent
from flatout.report.fit import draw_ways
from flatout.report.plain import inert, line

_LINES = 8
_BAR = 24


def draw_autopsy(autopsy: Autopsy, console: Console) -> None:
    """Print it all."""
    found = autopsy.found
    console.print(line(autopsy_headline(autopsy), "bold red"))
    if found.where:
        console.print(line(f"the script was at {inert(found.where)}"))
    if found.device_bytes is None:
        console.print(line(inert(found.message.splitlines()[0] if found.message else "")))
        _draw_notes(autopsy, console)
        return
    console.print()
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column(f"of {memory_size(found.device_bytes)}")
    table.add_column("", justify="right")
    table.add_column("")
    held = {
        **dict(sorted(found.parts.items(), key=lambda part: -part[1])),
        "reserved, and held by nobody": found.cached_bytes,
        "other processes and the driver": autopsy.others_bytes or 0,
        "free": found.free_bytes or 0,
    }
    for name, size in held.items():
        bar = "█" * round(_BAR * size / max(1, found.device_bytes))
        table.add_row(line(inert(name)), line(memory_size(size)), line(bar))
    console.print(table)
    if autopsy.fragmented_share:
        share = percent(autopsy.fragmented_share)
        console.print(line(f"{share} of what is reserved is free in pieces that are too small", "yellow"))
    if autopsy.growth_bytes_per_step:
        each = memory_size(round(autopsy.growth_bytes_per_step))
        console.print(line(f"it grew by {each} a step before: something is kept from step to step", "yellow"))
    lines = [one for one in found.holders if one.where][:_LINES]
    if lines:
        console.print()
        where = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        for name in ("asked for at", "", "", ""):
            where.add_column(name, justify="left" if name else "right")
        for one in lines:
            times = f"{one.count} x" if one.count > 1 else ""
            cells = (inert(one.where), one.category, times, memory_size(one.size_bytes))
            where.add_row(*map(line, cells))
        console.print(where)
    if autopsy.fixes:
        console.print()
        console.print(line("what would make it fit, as an imagined GPU has it", "bold"))
        draw_ways(autopsy.fixes, console)
    _draw_notes(autopsy, console)


def autopsy_headline(autopsy: Autopsy) -> str:
    """What happened, in one sentence."""
    found = autopsy.found
    asked = f"{memory_size(found.asked_bytes)} more" if found.asked_bytes is not None else "more"
    when = f"after {found.updates} updates" if found.updates else "before the first update"
    part = f", in the {found.phase} pass" if found.phase else ""
    return f"out of memory: {asked} was asked for {when}{part}"


def _draw_notes(autopsy: Autopsy, console: Console) -> None:
    for note in autopsy.notes:
        console.print(line(inert(note), "dim"))
