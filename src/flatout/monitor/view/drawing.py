"""Text for the view: inert, cut to a width, coloured by how much it matters."""

from collections.abc import Sequence

from rich.text import Text

from flatout.monitor.view.marks import Marks
from flatout.records.watched import Mood, Said
from flatout.records.words import inert

STYLES: dict[Mood, str] = {"good": "green", "plain": "", "dim": "dim", "warn": "yellow", "bad": "bold red"}


def text(words: str, marks: Marks, mood: Mood = "plain", *, bold: bool = False) -> Text:
    """Words from anywhere, harmless and in a style. Markup in them is only text."""
    style = " ".join(filter(None, (STYLES[mood], "bold" if bold else "")))
    return Text(marks.text(inert(words)), style=style, no_wrap=True, end="")


def said(one: Said, marks: Marks) -> Text:
    """Words in the colour of their mood."""
    return text(one.words, marks, one.mood)


def cell(content: Text, width: int, marks: Marks, *, right: bool = False) -> Text:
    """The text in exactly this many columns; what is cut ends in an ellipsis."""
    fitted = content.copy()
    if fitted.cell_len > width:
        cut = ".." if marks.plain else "…"
        fitted.truncate(max(0, width - len(cut)))
        fitted.append(cut[:width])
    if right:
        fitted.pad_left(width - fitted.cell_len)
    else:
        fitted.pad_right(width - fitted.cell_len)
    return fitted


def joined(parts: Sequence[Text], between: str = "  ") -> Text:
    """Parts that are not empty, beside each other."""
    whole = Text(no_wrap=True, end="")
    for part in (part for part in parts if part.plain):
        if whole.plain:
            whole.append(between)
        whole.append_text(part)
    return whole


def wrapped(parts: Sequence[Text], width: int, between: str = "  ") -> list[Text]:
    """The same over as many lines as it takes; a part is never torn unless it is longer than a line."""
    lines: list[list[Text]] = [[]]
    for part in (part for part in parts if part.plain):
        if lines[-1] and joined([*lines[-1], part], between).cell_len > width:
            lines.append([])
        lines[-1].append(part)
    return [joined(line, between) for line in lines if line]
