"""The link between ranks for a terminal: what a sum over all moves, what one costs, which pair is slow."""

from rich.console import Console
from rich.table import Table

from flatout.records.limits import Limits
from flatout.records.link import PairRate, RanksLink
from flatout.records.words import byte_rate, duration, memory_size, percent
from flatout.report.plain import is_narrow, line

_MEANING = (
    "bus rate: what each rank sends of a sum, 2 (n - 1) / n of its bytes, in a second; gradients travel so"
)
_SLOW_SHOWN = 5


def draw_link(limits: Limits, console: Console) -> None:
    """Nothing where no link was measured; its reason is in the document."""
    link = limits.link
    if link is None:
        return
    console.print(line(f"Between {link.where()}", "bold"))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for label, value in figures(limits, link):
        if is_narrow(console):
            console.print(line(f"{label}: {value}"))
        else:
            table.add_row(line(label), line(value))
    if not is_narrow(console):
        console.print(table)
    for pair in link.slow_pairs[:_SLOW_SHOWN]:
        console.print(line(f"SLOW: {slow_words(link, pair)}", "red"))
    if len(link.slow_pairs) > _SLOW_SHOWN:
        console.print(
            line(f"SLOW: and {len(link.slow_pairs) - _SLOW_SHOWN} more of {len(link.pairs)}", "red")
        )
    for note in notes(link):
        console.print(line(note, "dim"))
    console.print()


def figures(limits: Limits, link: RanksLink) -> list[tuple[str, str]]:
    """(what, how fast), for the terminal and the page."""
    rows = []
    if link.bus_bytes_per_s is not None:
        rows.append(("sum over all, bus rate", byte_rate(link.bus_bytes_per_s) + _of_rated(limits, link)))
    if link.sizes:
        by_size = [
            f"{memory_size(size.message_bytes)}: {byte_rate(size.bus_bytes_per_s)}" for size in link.sizes
        ]
        rows.append(("by the sum's size", ", ".join(by_size)))
    if link.small_s is not None:
        rows.append(("sum of a few numbers", duration(link.small_s)))
    if link.pair_median_bytes_per_s is not None:
        low, high = (pick(pair.bytes_per_s for pair in link.pairs) for pick in (min, max))
        spread = f" (median; {byte_rate(low)} to {byte_rate(high)})"
        rows.append(("copy between two, one way", byte_rate(link.pair_median_bytes_per_s) + spread))
    return rows


def _of_rated(limits: Limits, link: RanksLink) -> str:
    rated = limits.rated.gpu_link_one_way_bytes_per_s if limits.rated is not None else None
    if rated is None or limits.rated is None or link.backend != "nccl" or link.bus_bytes_per_s is None:
        return ""
    of = f"{byte_rate(rated)} ({limits.rated.gpu_link}, rated, one way)"
    if link.bus_bytes_per_s > rated:
        return f", above {of}: switches that add up send less than a ring would"
    return f", {percent(link.bus_bytes_per_s / rated)} of {of}"


def slow_words(link: RanksLink, pair: PairRate) -> str:
    """Which pair, how slow, and where to look."""
    ends = f"{link.members[pair.source]} to {link.members[pair.target]}"
    rate = f"{byte_rate(pair.bytes_per_s)}, {percent(link.below_median(pair))} below the median"
    return f"{ends}: {rate}; `flatout doctor` looks at links"


def notes(link: RanksLink) -> list[str]:
    """What the figures mean, and what is wrong with them."""
    found = [_MEANING] if link.bus_bytes_per_s is not None else []
    if found and link.backend == "nccl" and link.nodes == 1:
        found.append("`flatout fit --gpus` reckons with it for jobs on this machine")
    found += [f"not measured: {reason}" for reason in dict.fromkeys(link.unknown.values())]
    if link.settings:
        found.append(f"with {', '.join(link.settings)}")
    if link.disturbed:
        found.append(f"DISTURBED: {link.disturbed}. The link may be faster; repeat it on a quiet machine.")
    return found
