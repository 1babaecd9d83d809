"""`trace` for a terminal: the step, where it goes, kernels, operators, and where the host waits."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from flatout.records.trace import TraceSummary
from flatout.records.words import percent, three_digits
from flatout.report.plain import inert, is_narrow, line
from flatout.report.profile import draw_parts

# What a table needs beside the names.
_BESIDE_NAMES = 46
_NAME_AT_MOST = 100


def draw_trace(found: TraceSummary, console: Console, *, top: int = 8) -> None:
    """Print it all; as many rows of each table as `top`."""
    for text in _headlines(found):
        console.print(line(text, "bold"))
    console.print()
    if found.waterfall:
        draw_parts("where the time goes", found.waterfall, console)
    columns = ("", "calls", "ms", "us each")
    kernels = [
        (
            one.name,
            three_digits(one.calls),
            three_digits(one.ms),
            three_digits(one.mean_us),
            one.share,
            one.kind,
        )
        for one in found.kernels[:top]
    ]
    _draw("kernels", columns, kernels, console)
    operators = [
        (one.name, three_digits(one.calls), three_digits(one.ms), "", one.share, "")
        for one in found.operators[:top]
    ]
    heads = ("", "kernels" if found.kernels else "calls", "ms", "")
    _draw("operators", heads, operators, console)
    for sync in found.syncs[:top]:
        called = f" in {sync.operator}" if sync.operator else ""
        place = f" at {sync.where}" if sync.where else ""
        console.print(
            line(
                f"the host waits: {sync.call}{called}{place}, {three_digits(sync.count)} times a step, "
                f"{three_digits(sync.host_ms)} ms; the device then idles for {three_digits(sync.stall_ms)} ms"
            )
        )
    for rank in found.ranks:
        who = f"rank {rank.rank}" if rank.rank is not None else rank.file
        parts = [f"{three_digits(rank.step_ms)} ms a step"] if rank.step_ms is not None else []
        if rank.busy_share is not None:
            parts.append(f"busy {percent(rank.busy_share)}")
        if rank.exposed_communication_ms is not None:
            parts.append(f"exposed communication {three_digits(rank.exposed_communication_ms)} ms")
        console.print(line(f"{who}: {', '.join(parts)}"))
    for note in found.notes:
        console.print(line(note, "dim"))


def _headlines(found: TraceSummary) -> list[str]:
    files = f"{len(found.files)} traces" if len(found.files) > 1 else found.files[0]
    where = f" on {found.device_name}" if found.device_name else ""
    first = f"{files}{where}: {found.events:,} events"
    if found.step_ms is None:
        return [first, found.unknown["step_ms"]]
    pace = f"{found.steps} steps, {three_digits(found.step_ms.p50)} ms each (95 % under "
    pace += f"{three_digits(found.step_ms.p95)} ms)"
    if found.busy_share is not None:
        pace += f", the device does something {percent(found.busy_share)} of the time"
    if found.kernels_per_step is not None:
        pace += f", {three_digits(found.kernels_per_step)} kernels a step"
    return [first, pace]


def _draw(
    title: str,
    heads: Sequence[str],
    rows: Sequence[tuple[str, str, str, str, float, str]],
    console: Console,
) -> None:
    if not rows:
        return
    if is_narrow(console):
        console.print(line(title, "dim"))
        for name, calls, ms, *_ in rows:
            console.print(line(f"{_short(name)}: {ms} ms, {calls} {heads[1]}"))
        console.print()
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    width = max(20, min(_NAME_AT_MOST, console.width - _BESIDE_NAMES))
    table.add_column(title, no_wrap=True, overflow="ellipsis", max_width=width)
    for head in (*heads[1:], "share"):
        table.add_column(head, justify="right", no_wrap=True, min_width=5)
    table.add_column("", no_wrap=True)
    for name, calls, ms, each, share, kind in rows:
        table.add_row(inert(_short(name)), calls, ms, each, percent(share), inert(kind))
    console.print(table)
    console.print()


def _short(name: str) -> str:
    """Without what all of them begin with."""
    plain = name.removeprefix("void ").replace("at::native::", "").replace("(anonymous namespace)::", "")
    return plain if len(plain) <= _NAME_AT_MOST else plain[: _NAME_AT_MOST - 1] + "…"
