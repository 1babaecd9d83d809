"""`serve` for a terminal: where it listens, what it takes, and why batches are what they are."""

import shlex

from rich.console import Console
from rich.table import Table

from flatout.records.serving import EnginePlan, Serving
from flatout.records.words import duration, memory_size
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


def draw_plan(plan: EnginePlan, console: Console) -> None:
    """Another engine's command, with its reasons."""
    console.print(line(shlex.join(plan.command), "bold"), soft_wrap=True)
    token = memory_size(plan.token_bytes) if plan.token_bytes >= 1024 else f"{plan.token_bytes} bytes"
    console.print(
        line(f"  weights {memory_size(plan.weight_bytes)}; a token takes {token}: {inert(plan.token_words)}")
    )
    console.print(line(f"  {plan.cache_tokens:,} tokens fit into the cache"))
    for one in plan.settings:
        console.print(line(f"  {one.name} {one.value}: {inert(one.reason)}"))
