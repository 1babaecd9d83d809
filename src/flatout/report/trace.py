"""`trace` for a terminal: the step, where it goes, kernels, operators, and where the host waits."""

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table

from flatout.records.trace import CounterUse, RankTrace, TraceSummary
from flatout.records.words import percent, three_digits
from flatout.report.findings import draw_findings
from flatout.report.kernels import (
    NAME_AT_MOST,
    draw_kernels,
    draw_modules,
    draw_operators,
    draw_waits,
    short_name,
)
from flatout.report.parts import draw_parts
from flatout.report.plain import inert, is_narrow, line

# What a table needs beside the names.
_BESIDE_COUNTERS = 60


def draw_trace(found: TraceSummary, console: Console, *, top: int = 8) -> None:
    """Print it all; as many rows of each table as `top`."""
    for text in trace_headlines(found):
        console.print(line(text, "bold"))
    console.print()
    per = "a step" if found.step_ms is not None else "in all"
    if found.waterfall:
        draw_parts("where the time goes", found.waterfall, console, per=per)
    draw_kernels(found, console, top=top)
    draw_operators(found, console, top=top)
    draw_modules(found, console, top=top)
    for advice in found.advice:
        console.print(line(advice))
    _draw_counters(found.counters[:top], console, per)
    draw_waits(found.syncs, console, top=top, per=per)
    for rank in found.ranks:
        console.print(line(f"{_who(rank)}: {', '.join(_pace_of(rank))}"))
    draw_findings(found.findings, console)
    if found.findings:
        console.print()
    for note in found.notes:
        console.print(line(note, "dim"))


def _who(rank: RankTrace) -> str:
    return f"rank {rank.rank}" if rank.rank is not None else rank.file


def _pace_of(rank: RankTrace) -> list[str]:
    marked = rank.step_ms is not None
    parts = [f"{three_digits(rank.step_ms)} ms a step" if rank.step_ms is not None else "no steps are marked"]
    if rank.busy_share is not None:
        parts.append(f"busy {percent(rank.busy_share)}")
    if rank.exposed_communication_ms is not None:
        in_all = "" if marked else " in all"
        parts.append(f"exposed communication {three_digits(rank.exposed_communication_ms)} ms{in_all}")
    return parts


def trace_headlines(found: TraceSummary) -> list[str]:
    """What was read, which of it is shown, and the pace that it shows."""
    files = f"{len(found.files)} files" if len(found.files) > 1 else found.files[0]
    where = f" on {found.device_name}" if found.device_name else ""
    if not found.events and found.counters:
        launches = sum(one.calls for one in found.counters)
        return [f"{files}: launches counted: {launches:,}, kernels: {len(found.counters):,}"]
    read = [f"{files}{where}: {found.events:,} events", *_shown(found)]
    if found.step_ms is None:
        return [*read, found.unknown["step_ms"]]
    pace = f"{found.steps} steps, {three_digits(found.step_ms.p50)} ms each (95 % under "
    pace += f"{three_digits(found.step_ms.p95)} ms)"
    if found.busy_share is not None:
        pace += f", the device does something {percent(found.busy_share)} of the time"
    if found.kernels_per_step is not None:
        pace += f", {three_digits(found.kernels_per_step)} kernels a step"
    return [*read, pace]


def _shown(found: TraceSummary) -> list[str]:
    """Of several ranks: whose figures these are."""
    longest = "whose steps are the longest" if found.step_ms is not None else "which is the longest"
    return [
        f"what is shown is of {rank.file}{f' (rank {rank.rank})' if rank.rank is not None else ''}, {longest}"
        for rank in found.ranks
        if rank.shown
    ]


def _draw_counters(counters: Sequence[CounterUse], console: Console, per: str) -> None:
    """What each kernel keeps busy, and what binds it."""
    if not counters:
        return
    beside = any(one.step_ms is not None for one in counters)
    rows = [
        (
            one.kernel,
            _or_unknown(three_digits, one.step_ms if beside else one.ms),
            *(
                _or_unknown(percent, share)
                for share in (one.sm_share, one.memory_share, one.tensor_share, one.occupancy)
            ),
            one.bound or "?",
        )
        for one in counters
    ]
    heads = (f"ms {per}" if beside else "ms", "SMs", "memory", "tensor", "warps", "bound by")
    if is_narrow(console):
        console.print(line("kernels by counters", "dim"))
        for name, _, sms, memory, _, _, what in rows:
            console.print(line(f"{short_name(name)}: SMs {sms}, memory {memory}, bound by {what}"))
        console.print()
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    width = max(20, min(NAME_AT_MOST, console.width - _BESIDE_COUNTERS))
    table.add_column("kernels by counters", no_wrap=True, overflow="ellipsis", max_width=width)
    for head in heads[:-1]:
        table.add_column(head, justify="right", no_wrap=True, min_width=5)
    table.add_column(heads[-1], no_wrap=True)
    for name, *cells in rows:
        table.add_row(inert(short_name(name)), *map(inert, cells))
    console.print(table)
    console.print()


def _or_unknown(words: Callable[[float], str], value: float | None) -> str:
    return words(value) if value is not None else "?"
