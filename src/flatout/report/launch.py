"""`launch` for a terminal: beside the file itself, what was checked, what to know, and how to hand it in."""

import shlex

from rich.console import Console
from rich.table import Table

from flatout.records.launch import Launch
from flatout.report.plain import line

_STYLES = {"ok": "green", "failed": "bold red", "skipped": "dim"}


def draw_launch(found: Launch, console: Console) -> None:
    """Print what belongs beside the file; the file is for a pipe."""
    table = Table.grid(padding=(0, 1))
    table.add_column()
    table.add_column(overflow="fold")
    for check in found.checks:
        reason = f": {check.reason}" if check.reason else ""
        table.add_row(line(check.outcome, _STYLES[check.outcome]), line(check.by + reason))
    for note in found.notes:
        table.add_row(line("note"), line(note))
    console.print(table)
    if found.submitted:
        console.print(line(f"handed in: {found.answer}", "bold"))
        return
    if not found.is_sound:
        console.print(line("it should not be handed in as it is", "bold"))
    if found.file is None:
        name = found.submit[-1]
        console.print(line(f"nothing is written or handed in yet; --out {name} writes it, then:", "bold"))
    else:
        console.print(line(f"{found.file} is written; to hand it in:", "bold"))
    console.print(line(f"  {shlex.join(found.submit)}"), soft_wrap=True)
