"""Kernels, operators and waits of a trace for a terminal, as `trace` and `profile` both show them."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from flatout.records.trace import SyncPoint, TraceSummary
from flatout.records.words import percent, three_digits
from flatout.report.plain import inert, is_narrow, line

# What a table needs beside the names.
_BESIDE_NAMES = 53
NAME_AT_MOST = 100


def draw_kernels(found: TraceSummary, console: Console, *, top: int) -> None:
    """Those that take most, with their kinds."""
    bound = {one.kernel: f", bound by {one.bound}" for one in found.counters if one.bound is not None}
    rows = [
        (
            one.name,
            three_digits(one.calls),
            three_digits(one.ms),
            three_digits(one.mean_us),
            one.share,
            one.kind + bound.get(one.name, ""),
        )
        for one in found.kernels[:top]
    ]
    _draw("kernels", ("", "calls", "ms", "us each", "of kernels"), rows, console)


def draw_operators(found: TraceSummary, console: Console, *, top: int) -> None:
    """Those that take most."""
    rows = [
        (one.name, three_digits(one.calls), three_digits(one.ms), "", one.share, "")
        for one in found.operators[:top]
    ]
    calls = "kernels" if found.kernels else "calls"
    _draw("operators", ("", calls, "ms", "", share_head(found)), rows, console)


def draw_modules(found: TraceSummary, console: Console, *, top: int) -> None:
    """Those that take most, in both directions."""
    rows = [
        (
            one.name,
            three_digits(one.ms),
            three_digits(one.forward_ms),
            three_digits(one.backward_ms),
            one.share,
            "",
        )
        for one in found.modules[:top]
    ]
    _draw("modules", ("", "ms", "forward", "backward", share_head(found)), rows, console)


def share_head(found: TraceSummary) -> str:
    """What shares of operators and modules are of: not of the step, as those of its parts are."""
    return "of kernels" if found.kernels else "of operators"


def draw_waits(syncs: Sequence[SyncPoint], console: Console, *, top: int, per: str = "a step") -> None:
    """A line for each place where the host waits."""
    for sync in syncs[:top]:
        called = f" in {sync.operator}" if sync.operator else ""
        place = f" at {sync.where}" if sync.where else ""
        console.print(
            line(
                f"the host waits: {sync.call}{called}{place}, {three_digits(sync.count)} times {per}, "
                f"{three_digits(sync.host_ms)} ms; the device then idles for {three_digits(sync.stall_ms)} ms"
            )
        )


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
        for name, *figures, _share, _kind in rows:
            told = [f"{figure} {head}" for figure, head in zip(figures, heads[1:-1], strict=True) if head]
            console.print(line(f"{short_name(name)}: {', '.join(told)}"))
        console.print()
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    width = max(20, min(NAME_AT_MOST, console.width - _BESIDE_NAMES))
    table.add_column(title, no_wrap=True, overflow="ellipsis", max_width=width)
    for head in heads[1:]:
        table.add_column(head, justify="right", no_wrap=True, min_width=5)
    table.add_column("", no_wrap=True)
    for name, calls, ms, each, share, kind in rows:
        table.add_row(inert(short_name(name)), calls, ms, each, percent(share), inert(kind))
    console.print(table)
    console.print()


def short_name(name: str) -> str:
    """Without what all of them begin with."""
    plain = name.removeprefix("void ").replace("at::native::", "").replace("(anonymous namespace)::", "")
    return plain if len(plain) <= NAME_AT_MOST else plain[: NAME_AT_MOST - 1] + "…"
