"""`bench` for a terminal: answers and waiting over the load, and where the knee is."""

from rich.console import Console
from rich.table import Table

from flatout.records.bench import Bench, LoadPoint
from flatout.report.figures import milliseconds, number
from flatout.report.plain import inert, is_narrow, line

_BAR = 20


def load_words(bench: Bench, one: LoadPoint) -> str:
    """A load in words."""
    return f"{one.load:g} requests a second" if bench.loop == "open" else f"{one.load:g} at a time"


def headline(bench: Bench) -> str:
    """The knee in one line."""
    if bench.knee is None:
        return "nothing was answered"
    best = bench.points[bench.knee]
    p99 = milliseconds(best.latency_ms.p99) if best.latency_ms else "unknown"
    tokens = f", {number(best.tokens_per_s)} tokens/s" if best.tokens_per_s is not None else ""
    return f"{number(best.answered_per_s)} answers/s{tokens} with {load_words(bench, best)}, p99 {p99}"


def draw_bench(bench: Bench, console: Console) -> None:
    """Print it all."""
    console.print(line(headline(bench), "bold"))
    console.print(line(inert(bench.reason)))
    console.print()
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    narrow = is_narrow(console)
    first = "a second" if bench.loop == "open" else "at once"
    names = [first, "answers/s", "p50", "p99"] + ([] if narrow else ["", "p99.9", "failed"])
    if bench.streams:
        names += ["first token", "tokens/s"]
    for name in names:
        table.add_column(name, justify="left" if not name else "right")
    most = max(one.answered_per_s for one in bench.points) or 1.0
    for place, one in enumerate(bench.points):
        cells = _cells(bench, one, most, narrow)
        table.add_row(*(line(inert(cell), "bold" if place == bench.knee else "") for cell in cells))
    console.print(table)
    for words in _failures(bench):
        console.print(line(inert(words)))
    console.print(line(f"{bench.url}{bench.path}, {inert(bench.payload)}", "dim"))


def _cells(bench: Bench, one: LoadPoint, most: float, narrow: bool) -> list[str]:
    times = one.latency_ms
    p50, p99, p999 = (
        (milliseconds(value) for value in (times.p50, times.p99, times.p999)) if times else ("", "", "")
    )
    cells = [f"{one.load:g}", number(one.answered_per_s), p50, p99]
    if not narrow:
        failed = one.sent - one.answered
        cells += ["█" * round(_BAR * one.answered_per_s / most), p999, f"{failed:,}" if failed else ""]
    if bench.streams:
        cells += [
            milliseconds(one.first_token_ms.p50) if one.first_token_ms else "",
            number(one.tokens_per_s),
        ]
    return cells


def _failures(bench: Bench) -> list[str]:
    found: dict[str, int] = {}
    for one in bench.points:
        for name, count in one.statuses.items():
            if not name.startswith("2"):
                found[f"status {name}"] = found.get(f"status {name}", 0) + count
        for name, count in one.errors.items():
            found[name] = found.get(name, 0) + count
    return [f"{count:,} times: {name}" for name, count in found.items()]
