"""What a terminal can show: characters of curves, and plain ones where a locale has no others."""

import dataclasses
from collections.abc import Mapping, Sequence

from flatout.monitor.history import Spread

_BRAILLE = 0x2800
# Dots of a cell from the bottom up, left column and right.
_LEFT, _RIGHT = (0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08)


@dataclasses.dataclass(frozen=True)
class Marks:
    """Characters to draw with; `plain` for ASCII alone."""

    plain: bool = False

    def text(self, words: str) -> str:
        """Our own words as this terminal can show them."""
        return words.replace("°C", "C").encode("ascii", "replace").decode() if self.plain else words

    def bar(self, curve: Sequence[Spread | None], top: float) -> str:
        """A curve in one line, a character a part; a space where nothing is known."""
        steps = "_.:-=+*#" if self.plain else "▁▂▃▄▅▆▇█"
        return "".join(
            " " if part is None else steps[_level(part.mean, top, len(steps) - 1)] for part in curve
        )

    def plot(self, curve: Sequence[Spread | None], top: float, height: int) -> list[str]:
        """A curve over several lines, filled; two parts a character, or one in ASCII."""
        if height == 1:
            return [self.bar(curve if self.plain else _halved(curve), top)]
        return self._blocks(curve, top, height) if self.plain else _braille(curve, top, height)

    def parts(self, width: int) -> int:
        """How many parts a plot of this width has."""
        return width if self.plain else 2 * width

    @staticmethod
    def _blocks(curve: Sequence[Spread | None], top: float, height: int) -> list[str]:
        levels = [None if part is None else _level(part.mean, top, 2 * height) for part in curve]
        lines = []
        for row in range(height - 1, -1, -1):
            cells = (
                " " if level is None or level <= 2 * row else "#" if level >= 2 * row + 2 else "."
                for level in levels
            )
            lines.append("".join(cells))
        return lines


def marks_for(environment: Mapping[str, str]) -> Marks:
    """By the locale, as the C library reads it: the first of these that is set counts."""
    names = ("LC_ALL", "LC_CTYPE", "LANG")
    locale = next((environment[name] for name in names if environment.get(name)), "")
    return Marks(plain="utf" not in locale.lower())


def _level(value: float, top: float, most: int) -> int:
    return max(0, min(most, round(value / top * most))) if top > 0 else 0


def _halved(curve: Sequence[Spread | None]) -> list[Spread | None]:
    pairs = zip(curve[::2], curve[1::2], strict=False)
    return [
        second if first is None else first if second is None else _mean(first, second)
        for first, second in pairs
    ]


def _mean(first: Spread, second: Spread) -> Spread:
    return Spread(min(first.low, second.low), (first.mean + second.mean) / 2, max(first.high, second.high))


def _braille(curve: Sequence[Spread | None], top: float, height: int) -> list[str]:
    levels = [None if part is None else max(1, _level(part.mean, top, 4 * height)) for part in curve]
    lines = []
    for row in range(height - 1, -1, -1):
        cells = []
        for left, right in zip(levels[::2], levels[1::2], strict=False):
            dots = _dots(left, row, _LEFT) | _dots(right, row, _RIGHT)
            cells.append(chr(_BRAILLE | dots) if dots else " ")
        lines.append("".join(cells))
    return lines


def _dots(level: int | None, row: int, column: tuple[int, ...]) -> int:
    filled = 0 if level is None else max(0, min(4, level - 4 * row))
    return sum(column[:filled])
