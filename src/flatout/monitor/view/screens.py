"""Screens over the main one: a job with all that is known of it, a question, the keys."""

import textwrap
from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen, Screen

from flatout.monitor.view.drawing import cell, text
from flatout.monitor.view.marks import Marks
from flatout.monitor.view.widgets import Lines

KEYS: tuple[tuple[str, str], ...] = (
    ("q", "quit"),
    ("up, down, j, k", "walk through jobs and processes"),
    ("enter", "open the job"),
    ("tab, 0-9", "pick a GPU"),
    ("g", "only the picked GPU's processes, or all"),
    ("s", "sort by memory, age, name, user or GPU"),
    ("/", "filter by name, user or pid; escape ends it"),
    ("t", "the time that curves show: 1 min to 24 h"),
    ("space", "pause, and go on"),
    ("left, right, home, end", "in a recording: back, forth, first, last"),
    ("x", "end the job (asks first; only with --allow-stop)"),
    ("?", "these keys"),
)


_MEANINGS = (
    "SM active: the share of time in which multiprocessors had work. Tensor active: their tensor cores. "
    "Kernel running: some kernel ran, however small. DRAM busy: of what the GPU's memory can move. None of "
    "them is MFU."
)


class TextScreen(Screen[None]):
    """Lines that fill the screen and are made anew at every look; escape goes back."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q", "app.pop_screen", "back"),
        Binding("down,j", "scroll(1)", "down"),
        Binding("up,k", "scroll(-1)", "up"),
    ]

    def __init__(self, lines: Callable[[int], Sequence[Text]], marks: Marks) -> None:
        super().__init__()
        self._make, self._marks = lines, marks
        self._first = 0

    def compose(self) -> ComposeResult:
        """The lines, and how to leave."""
        yield Lines("body")
        yield Lines("back")

    def on_mount(self) -> None:
        """All the room for the lines."""
        self.query_one("#body", Lines).styles.height = "1fr"
        self.draw()

    def on_resize(self) -> None:
        """Another width makes other lines."""
        self.call_after_refresh(self.draw)

    def draw(self) -> None:
        """Make the lines anew."""
        lines = list(self._make(self.size.width))
        self._first = max(0, min(self._first, len(lines) - self.size.height + 1))
        self.query_one("#body", Lines).show(lines[self._first :])
        hint = text("escape  back   up, down  scroll", self._marks, "dim")
        self.query_one("#back", Lines).show([cell(hint, self.size.width, self._marks)])

    def action_scroll(self, lines: int) -> None:
        """Up or down."""
        self._first = max(0, self._first + lines)
        self.draw()


class Question(ModalScreen[bool]):
    """Asks before something is done; anything but y is no."""

    DEFAULT_CSS = """
    Question { align: center middle; }
    Question Lines { width: 100%; max-width: 76; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes"),
        Binding("n,escape,q,enter,space", "answer(False)", "no"),
    ]

    def __init__(self, lines: Sequence[str], marks: Marks) -> None:
        super().__init__()
        self._words, self._marks = lines, marks

    def compose(self) -> ComposeResult:
        """A box of its own."""
        yield Lines("question")

    def on_mount(self) -> None:
        """As high as its text."""
        self.query_one(Lines).styles.height = len(self._words) + 2
        self.call_after_refresh(self._draw)

    def on_resize(self) -> None:
        """Another width cuts elsewhere."""
        self.call_after_refresh(self._draw)

    def _draw(self) -> None:
        box = self.query_one(Lines)
        rule = ("-" if self._marks.plain else "─") * box.size.width
        body = [cell(text(words, self._marks), box.size.width, self._marks) for words in self._words]
        box.show([Text(rule), *body, Text(rule)])

    def action_answer(self, yes: bool) -> None:
        """Go back with the answer."""
        self.dismiss(yes)


def key_lines(width: int, marks: Marks) -> list[Text]:
    """Every key and what it does."""
    lines = [text("keys", marks, bold=True), Text()]
    for keys, words in KEYS:
        lines.append(cell(text(f"{keys:<24}{words}", marks), width, marks))
    lines += [
        Text(),
        *(text(line, marks, "dim") for line in textwrap.wrap(_MEANINGS, max(20, width - 1))),
    ]
    return lines
