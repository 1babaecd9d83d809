"""The one widget of the view: lines of text, of which only those that changed are sent to the terminal."""

from collections.abc import Sequence

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

_CHOSEN = Style(reverse=True)


class Lines(Widget):
    """Shows lines from the top, or those around the chosen one where there is not enough room for all."""

    DEFAULT_CSS = "Lines { height: 1; width: 1fr; overflow: hidden; }"

    def __init__(self, id: str) -> None:  # noqa: A002 - textual's name for it
        super().__init__(id=id)
        self._lines: list[Text] = []
        self._chosen: int | None = None
        self._first = 0

    def show(self, lines: Sequence[Text], chosen: int | None = None) -> None:
        """Show these; lines that are as they were are not drawn again."""
        before = self._visible()
        self._lines, self._chosen = list(lines), chosen
        self._scroll()
        after = self._visible()
        for y, (old, new) in enumerate(zip(before, after, strict=True)):
            if old != new:
                self.refresh(Region(0, y, self.size.width, 1))

    def render_line(self, y: int) -> Strip:
        """One line of the screen."""
        width = self.size.width
        number = self._first + y
        if number >= len(self._lines):
            return Strip.blank(width, self.rich_style)
        line, console = self._lines[number], self.app.console
        if number == self._chosen:  # without colours of its own: reversed, these are hard to read
            return Strip([Segment(line.plain, _CHOSEN)]).adjust_cell_length(width, _CHOSEN)
        style = self.rich_style + console.get_style(line.style)
        return Strip(Segment.apply_style(line.render(console), style)).adjust_cell_length(
            width, self.rich_style
        )

    def on_resize(self) -> None:
        """Another height shows other lines."""
        self._scroll()

    def _scroll(self) -> None:
        height = max(1, self.size.height)
        first = min(self._first, max(0, len(self._lines) - height))
        if self._chosen is not None:
            first = min(max(first, self._chosen - height + 1), self._chosen)
        self._first = first

    def _visible(self) -> list[tuple[object, ...]]:
        shown: list[tuple[object, ...]] = []
        for y in range(self.size.height):
            number = self._first + y
            line = self._lines[number] if number < len(self._lines) else Text()
            shown.append((line.plain, line.style, tuple(line.spans), number == self._chosen))
        return shown
