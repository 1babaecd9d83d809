"""The list of runs for a terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from flatout.records.index import RunEntry
from flatout.records.runs import RunManifest
from flatout.report.plain import inert, is_narrow, line


def draw_runs(entries: Sequence[RunEntry], console: Console, *, folder: str) -> None:
    """Print one line a run, newest first."""
    if not entries:
        console.print(line(f"no saved runs in {folder}; `flatout doctor --save` makes one"))
        return
    if is_narrow(console):
        for entry in entries:
            console.print(line(f"{entry.id} {entry.status}"))
        return
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    for heading in ("run", "command", "when (UTC)", "host", "status"):
        table.add_column(heading, overflow="fold")
    for entry in entries:
        when = entry.created_at[:19].replace("T", " ")
        table.add_row(*(inert(cell) for cell in (entry.id, entry.command, when, entry.host, entry.status)))
    console.print(table)


def draw_run_header(manifest: RunManifest, status: str, console: Console) -> None:
    """Whose figures these are: they may be of another machine and another day. `status` is as of now."""
    when = manifest.created_at.strftime("%Y-%m-%d %H:%M UTC")
    console.print(line(f"{manifest.id}: {manifest.command} on {manifest.host}, {when}, {status}", "bold"))
    for text in manifest.problem.splitlines():
        console.print(line(inert(text)))
    console.print()
