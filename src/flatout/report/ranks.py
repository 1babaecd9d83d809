"""Ranks beside each other: a row each, with what its step goes to."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from flatout.records.ranks import RankUse
from flatout.report.figures import milliseconds
from flatout.report.plain import inert, is_narrow, line

# More rows than this are too many to read: those that do most outside of the passes are shown.
_MOST = 8
_PASSES = ("forward", "backward")


def part_names(ranks: Sequence[RankUse]) -> list[str]:
    """The parts that take any time on some rank, in the order of a step."""
    found: dict[str, float] = {}
    for rank in ranks:
        for share in rank.parts:
            found[share.part] = found.get(share.part, 0.0) + share.ms
    return [part for part, ms in found.items() if ms > 0]


def times_of(rank: RankUse, parts: Sequence[str]) -> list[str]:
    """How long a rank takes for each of these parts; empty where that was not seen."""
    known = {share.part: share.ms for share in rank.parts}
    return [milliseconds(known[part]) if part in known else "" for part in parts]


def draw_ranks(ranks: Sequence[RankUse], console: Console) -> None:
    """A table, where there are several; on a narrow terminal a line each."""
    if len(ranks) < 2:
        return
    shown = sorted(sorted(ranks, key=_outside, reverse=True)[:_MOST], key=lambda rank: rank.rank)
    parts = part_names(shown)
    steps = [milliseconds(rank.step_ms) if rank.step_ms is not None else "?" for rank in shown]
    if is_narrow(console):
        for rank, step in zip(shown, steps, strict=True):
            told = zip(parts, times_of(rank, parts), strict=True)
            words = ", ".join(f"{part} {ms}" for part, ms in told if ms)
            console.print(line(f"rank {rank.rank}: {step} a step: {words}"))
    else:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("")
        for title in ("a step", *parts):
            table.add_column(inert(title), justify="right", no_wrap=True)
        for rank, step in zip(shown, steps, strict=True):
            table.add_row(f"rank {rank.rank}", step, *times_of(rank, parts))
        console.print(table)
    if len(shown) < len(ranks):
        console.print(line(f"and {len(ranks) - len(shown)} ranks with less to do outside of passes", "dim"))
    console.print()


def _outside(rank: RankUse) -> float:
    return sum(share.ms for share in rank.parts if share.part not in _PASSES)
