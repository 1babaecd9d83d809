"""`fit` for a terminal: the peak, what holds it, where there is room for it, and what would make some."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flatout.records.fit import Fit, FitOption, MemoryAt, SpreadOption
from flatout.records.words import memory_size, percent
from flatout.report.plain import inert, line

_BAR = 24
_LINES = 6
_WIDTH, _HEIGHT = 64, 4
_EIGHTHS = " ▁▂▃▄▅▆▇█"
_MARKS = {True: ("fits", "green"), False: ("no", "red"), None: ("?", "yellow")}


def draw_fit(fit: Fit, console: Console) -> None:
    """Print it all."""
    if not fit.peak_bytes:
        _draw_nothing(fit, console)
        return
    peak, reserved = memory_size(fit.peak_bytes), memory_size(fit.reserved_bytes)
    console.print(line(f"{peak} at the peak, {reserved} reserved, within {percent(fit.error_bar)}", "bold"))
    if fit.where is not None:
        console.print(line(f"the peak is reached at {inert(fit.where)}"))
    console.print()
    _draw_timeline(fit.timeline, fit.updates, console)
    _draw_parts(fit, console)
    _draw_lines(fit, console)
    _draw_options(fit.options, console)
    if fit.strategies:
        console.print()
        _draw_strategies(fit, console)
    if fit.spread:
        console.print()
        _draw_spread(fit.spread, console)
    for note in fit.notes:
        console.print(line(inert(note), "dim"))
    console.print(line(f"no GPU was used; it took {fit.took_s:.0f} s", "dim"))


def _draw_nothing(fit: Fit, console: Console) -> None:
    """Where it would fit is no question for a script that does not use a GPU."""
    for place, note in enumerate(fit.notes):
        console.print(line(inert(note), "dim" if place else "bold"))
    console.print(
        line("tell it to use one, by an option such as --device cuda or model.to('cuda'): none need be here")
    )


def draw_sizes(fits: Sequence[tuple[int | None, Fit]], console: Console) -> None:
    """Several batch sizes, a row each, and on which GPUs they fit."""
    if not any(fit.peak_bytes for _, fit in fits):
        _draw_nothing(fits[0][1], console)
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("batch", "peak", "reserved"):
        table.add_column(name, justify="right")
    for option in fits[0][1].options:
        table.add_column(option.gpu)
    for size, fit in fits:
        cells = (str(size), memory_size(fit.peak_bytes), memory_size(fit.reserved_bytes))
        verdicts = (line(*_MARKS[option.fits]) for option in fit.options)
        table.add_row(*map(line, cells), *verdicts)
    console.print(table)
    console.print(line("no GPU was used; ? is too close to say", "dim"))


def draw_models(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Models by their configuration: for each use what it takes, and where that fits."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("model", "use", "batch", "needed"):
        table.add_column(name, justify="left" if name in ("model", "use") else "right")
    for option in rows[0]["fit"].options:
        table.add_column(option.gpu)
    for row in rows:
        fit = row["fit"]
        needed = memory_size(fit.options[0].peak_bytes)
        cells = (inert(row["model"]), row["use"], str(row["batch"]), needed)
        table.add_row(*map(line, cells), *(line(*_MARKS[option.fits]) for option in fit.options))
    console.print(table)
    console.print(line(f"{rows[0]['context']} tokens a sequence; training is AdamW in bf16 autocast", "dim"))
    console.print(line("lora: rank 16 beside every projection; inference: keys and values are kept", "dim"))
    console.print(line("no GPU was used; ? is too close to say", "dim"))


def _draw_timeline(timeline: Sequence[MemoryAt], updates: int, console: Console) -> None:
    """What is allocated, from the first request to the last."""
    if not timeline:
        return
    stretch = max(1, -(-len(timeline) // _WIDTH))
    heights = [
        max(one.allocated_bytes for one in timeline[start : start + stretch])
        for start in range(0, len(timeline), stretch)
    ]
    top = max(1, *heights)
    for row in range(_HEIGHT, 0, -1):
        filled = (round(8 * (height / top * _HEIGHT - (row - 1))) for height in heights)
        bars = "".join(_EIGHTHS[min(8, max(0, part))] for part in filled)
        console.print(line(f"{bars}  {memory_size(top)}" if row == _HEIGHT else bars, "cyan"))
    console.print(line(f"from the start to the end of update {updates}", "dim"))
    console.print()


def _draw_parts(fit: Fit, console: Console) -> None:
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


def _draw_lines(fit: Fit, console: Console) -> None:
    """Of activations, which lines hold most; what is owned is told above."""
    held = [one for one in fit.holders if one.category == "activations" and one.where][:_LINES]
    if not held:
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("activations, by line", "", "", ""):
        table.add_column(name, justify="right" if not name else "left")
    for one in held:
        times = f"{one.count} x" if one.count > 1 else ""
        table.add_row(
            line(inert(one.where)), line(inert(one.operator)), line(times), line(memory_size(one.size_bytes))
        )
    console.print(table)
    console.print()


# Why something fits that needs more than there is.
BARELY = (
    "barely: part of what is needed is kept for later, and torch gives it back when it runs out, "
    "which takes time"
)


def _draw_options(options: Sequence[FitOption], console: Console) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("GPU", "memory", "needed", "", "an hour"):
        table.add_column(name, justify="left" if name in ("GPU", "") else "right")
    for option in options:
        cells = (option.gpu, memory_size(option.memory_bytes), memory_size(option.peak_bytes))
        table.add_row(*map(line, cells), _verdict_line(option), line(option_price(option)))
    console.print(table)
    if any(option.fits and option.is_tight for option in options):
        console.print(line(BARELY, "dim"))


def _draw_strategies(fit: Fit, console: Console) -> None:
    """What would make it fit, the least costly first; where nothing would, the least that it takes."""
    for name in dict.fromkeys(option.gpu for option in fit.strategies):
        options = [option for option in fit.strategies if option.gpu == name]
        fitting = [option for option in options if option.fits]
        if not fitting:
            console.print(
                line(
                    f"nothing tried here makes it fit into {name}: the least on one GPU is "
                    f"{memory_size(fit.least_bytes or 0)} ({fit.least_by})",
                    "bold",
                )
            )
            continue
        console.print(line(f"what makes it fit into {name}", "bold"))
        draw_ways(fitting, console)


def draw_ways(options: Sequence[FitOption], console: Console) -> None:
    """Ways that fit, a row each, and how to have them."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("", "needed", "step at most", "an hour"):
        table.add_column(title, justify="left" if not title else "right")
    for option in options:
        words = option.strategy + (" (changes the training)" if option.changes_training else "")
        words += " (barely)" if option.is_tight else ""
        cost = f"{option.predicted_slowdown:.2f}x"
        cells = (words, memory_size(option.peak_bytes), cost, option_price(option))
        table.add_row(*map(line, cells))
    console.print(table)
    for how in dict.fromkeys(option.how for option in options):
        console.print(line(f"  {how}", "dim"))


def _draw_spread(options: Sequence[SpreadOption], console: Console) -> None:
    """Ways over several GPUs: what each GPU needs, what moves in a step, what that costs."""
    for name in dict.fromkeys(option.gpu for option in options):
        rows = [option for option in options if option.gpu == name]
        link = rows[0].link_bytes_per_s
        of_link = f", {memory_size(round(link))}/s between two ({inert(rows[0].link_source)})" if link else ""
        console.print(line(f"over {rows[0].gpus} GPUs {name}{of_link}", "bold"))
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        for title in ("", "", "each needs", "moves a step", "takes", "over one GPU"):
            table.add_column(title, justify="right" if title else "left")
        for option in rows:
            table.add_row(
                line("->" if option.is_chosen else ""),
                line(option.strategy),
                line(
                    memory_size(option.peak_bytes), {True: "green", False: "red", None: "yellow"}[option.fits]
                ),
                line(memory_size(option.moved_bytes)),
                line(f"{option.moving_s * 1000:.3g} ms" if option.moving_s is not None else "?"),
                line(_speedups(option)),
            )
        console.print(table)
        if not any(option.is_chosen for option in rows):
            console.print(line("  none of them fits", "red"))
    for option in {option.strategy: option for option in options}.values():
        waits = f"; {percent(option.idle_share)} of a step waits in any case" if option.idle_share else ""
        console.print(line(f"  {option.strategy} splits {option.splits}; {option.moves}{waits}", "dim"))


def _speedups(option: SpreadOption) -> str:
    if option.predicted_speedup_low is None or option.predicted_speedup_high is None:
        return "?"
    return f"{option.predicted_speedup_low:.2f}x to {option.predicted_speedup_high:.2f}x"


def option_price(option: FitOption) -> str:
    """An hour of it; empty where no price is known."""
    return f"{option.usd_per_hour:.2f} USD" if option.usd_per_hour is not None else ""


def _verdict_line(option: FitOption) -> Text:
    style = {True: "green", False: "red", None: "yellow"}[option.fits]
    return line(option_verdict(option), style)


def option_verdict(option: FitOption) -> str:
    """In words: does it fit?"""
    if option.fits is None:
        return "too close to say"
    if option.fits and option.is_tight:
        return "fits, barely"
    return "fits" if option.fits else "does not fit"
