"""Debug switches for a terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table


def draw_switches(rows: Sequence[tuple[str, str, str, bool]], console: Console) -> None:
    """Name, what it shows, what it costs, and whether it needs a GPU."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("switch", no_wrap=True)
    table.add_column("shows")
    table.add_column("costs")
    table.add_column("where", no_wrap=True)
    for name, shows, cost, needs_cuda in rows:
        table.add_row(name, shows, cost, "GPU" if needs_cuda else "anywhere")
    console.print(table)
