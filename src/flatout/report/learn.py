"""Lessons for a terminal: the answer first, then the picture, what one sees in it, and what to do."""

import math
from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from flatout.records.learn import (
    BarPicture,
    CurvePicture,
    LearnCurve,
    LearnDevice,
    Learned,
    LessonEntry,
    Listing,
    Picture,
    Scale,
    TablePicture,
    Taught,
)
from flatout.report.learn_words import ORIGINS, figure_words
from flatout.report.plain import inert, is_narrow, line

_WIDEST_TEXT = 100
_BAR, _SHORTEST_BAR = 30, 10
# A log bar begins this much below its smallest value, so that the smallest has a length.
_LOG_ROOM = 0.35
_STYLES = {"measured": "cyan", "rated": "yellow", "computed": "magenta"}


def draw_entries(entries: Sequence[LessonEntry], console: Console) -> None:
    """The list of lessons, and which to start with."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column("", no_wrap=True, style="bold")
    table.add_column("")
    for entry in entries:
        table.add_row(entry.id, line(f"{entry.title}. {entry.question} (about {entry.seconds} s)"))
    if is_narrow(console):
        for entry in entries:
            console.print(line(f"{entry.id}: {entry.question}"))
    else:
        console.print(table)
    first = next(entry for entry in entries if entry.is_first)
    console.print()
    console.print(line(f"Start with: flatout learn {first.id}"))
    console.print(line("All of them, as a page to read: flatout learn --all --html learn.html", "dim"))


def draw_learned(learned: Learned, console: Console) -> None:
    """Every lesson, and where its figures come from."""
    console.print(line(device_words(learned.device), "dim"), width=_text_width(console))
    for taught in learned.lessons:
        console.print()
        _draw_lesson(taught, console)
    if learned.disturbed:
        console.print()
        words = f"DISTURBED: {learned.disturbed}. Figures may be too low; repeat it on a quiet machine."
        console.print(line(words, "yellow"), width=_text_width(console))


def device_words(device: LearnDevice) -> str:
    """What was measured, and why that."""
    return f"measured on {inert(device.name)}, torch {inert(device.torch_version)} ({inert(device.reason)})"


def _draw_lesson(taught: Taught, console: Console) -> None:
    width = _text_width(console)
    console.print(line(taught.title, "bold underline"))
    console.print(line(taught.question, "dim"), width=width)
    console.print()
    console.print(line(taught.answer, "bold"), width=width)
    for picture in taught.pictures:
        console.print()
        _draw_picture(picture, console)
    for paragraph in taught.seen:
        console.print()
        console.print(line(paragraph), width=width)
    if taught.rated is not None:
        console.print()
        _draw_picture(taught.rated, console)
    console.print()
    console.print(line("What to do", "bold"))
    for advice in taught.advice:
        console.print(line(advice.command, "green"))
        console.print(Padding(line(advice.why), (0, 0, 0, 4)), width=width)
    for note in taught.notes:
        console.print(line(note, "dim"), width=width)
    console.print(line(f"measured in {taught.took_s:.1f} s", "dim"))


def _draw_picture(picture: Picture, console: Console) -> None:
    if isinstance(picture, BarPicture):
        _draw_bars(picture, console)
    elif isinstance(picture, CurvePicture):
        _draw_curve(picture, console)
    elif isinstance(picture, TablePicture):
        _draw_table(picture, console)
    else:
        _draw_listing(picture, console)
    if picture.caption:
        console.print(line(picture.caption, "dim"), width=_text_width(console))


def _draw_bars(picture: BarPicture, console: Console) -> None:
    mixed = len({bar.origin for bar in picture.bars}) > 1
    console.print(line(_titled(picture.title, "" if mixed else picture.bars[0].origin), "bold"))
    shares = bar_shares([bar.value for bar in picture.bars], picture.scale)
    rows = []
    for bar, share in zip(picture.bars, shares, strict=True):
        words = bar.words or figure_words(bar.value, picture.unit)
        words += f" ({bar.origin})" if mixed and bar.origin != "measured" else ""
        rows.append((bar.label, words, share, _STYLES[bar.origin]))
    _draw_rows(rows, console)


def _draw_curve(picture: CurvePicture, console: Console) -> None:
    """A row for each point of the first curve, a bar each; the others are figures beside it."""
    first, *others = picture.curves
    console.print(line(_titled(picture.title, first.origin), "bold"))
    shares = bar_shares([y for _, y in first.points], picture.y_scale)
    rows = []
    for (x, y), share in zip(first.points, shares, strict=True):
        words = figure_words(y, picture.y_unit)
        beside = [(one, value) for one in others if (value := _at(one, x)) is not None]
        words += "".join(f"; {one.name} {figure_words(value, picture.y_unit)}" for one, value in beside)
        rows.append((figure_words(x, picture.x_unit), words, share, _STYLES[first.origin]))
        marks = [mark.label for mark in picture.marks if x <= mark.x < 2 * x]
        rows += [(f"{label}", "", 0.0, "dim") for label in marks if x != first.points[-1][0]]
    _draw_rows(rows, console)


def _at(curve: LearnCurve, x: float) -> float | None:
    return next((y for at, y in curve.points if at == x), None)


def _draw_rows(rows: Sequence[tuple[str, str, float, str]], console: Console) -> None:
    if is_narrow(console):
        for label, words, _, _ in rows:
            console.print(line(f"{label}: {words}" if words else label))
        return
    block = "#" if console.options.ascii_only else "█"
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column("", no_wrap=True, justify="right")
    table.add_column("", no_wrap=True)
    table.add_column("")
    taken = max(len(label) for label, *_ in rows) + max(len(words) for _, words, *_ in rows)
    longest = max(_SHORTEST_BAR, min(_BAR, console.width - taken - 6))
    for label, words, share, style in rows:
        bar = block * max(1 if share else 0, round(longest * share))
        table.add_row(line(label), line(bar, style), line(words))
    console.print(table)


def _draw_table(picture: TablePicture, console: Console) -> None:
    console.print(line(_titled(picture.title, picture.origin), "bold"))
    if is_narrow(console):
        for name, *cells in picture.rows:
            pairs = zip(picture.header[1:], cells, strict=True)
            console.print(line(f"{name}: " + ", ".join(f"{head} {cell}" for head, cell in pairs if cell)))
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for place, head in enumerate(picture.header):
        table.add_column(line(head), justify="right" if place else "left")
    for row in picture.rows:
        table.add_row(*(line(cell) for cell in row))
    console.print(table)


def _draw_listing(picture: Listing, console: Console) -> None:
    console.print(line(picture.title, "bold"))
    for text in picture.lines:
        console.print(Padding(line(text, "cyan"), (0, 0, 0, 2)))


def _titled(title: str, origin: str) -> str:
    return f"{title} ({ORIGINS[origin]})" if origin in ("rated", "computed") else title  # type: ignore[index]


def bar_shares(values: Sequence[float], scale: Scale) -> list[float]:
    """How long each bar is, of the longest; on a log scale the shortest still has a length."""
    highest = max(values, default=0.0)
    if highest <= 0:
        return [0.0 for _ in values]
    if scale == "linear":
        return [max(0.0, value / highest) for value in values]
    lowest = min(value for value in values if value > 0)
    low = math.log10(lowest) - _LOG_ROOM
    span = math.log10(highest) - low
    return [(math.log10(value) - low) / span if value > 0 else 0.0 for value in values]


def _text_width(console: Console) -> int:
    return min(console.width, _WIDEST_TEXT)
