"""Stacked bars: several on one scale, pieces of which are told apart by colour, and a key with figures."""

import dataclasses
import math
from collections.abc import Sequence

# A piece narrower than this has no room for words, not even on a phone.
_ROOM_FOR_WORDS = 9.0


@dataclasses.dataclass(frozen=True)
class Part:
    """What a piece stands for; `kind` is one of ours, never a name from outside."""

    kind: str
    name: str
    size: float
    figure: str
    label: str = ""
    meaning: str = ""


@dataclasses.dataclass(frozen=True)
class Piece:
    """A piece of a bar, in percent of the longest."""

    kind: str
    start: float
    width: float
    label: str
    title: str


@dataclasses.dataclass(frozen=True)
class Bar:
    """A bar with its name and what it comes to."""

    name: str
    figure: str
    pieces: list[Piece]
    is_main: bool = False


@dataclasses.dataclass(frozen=True)
class Stack:
    """Bars on one scale, and the key of the first."""

    bars: list[Bar]
    keys: list[Part]


def pieces(parts: Sequence[Part], whole: float) -> list[Piece]:
    """Side by side, as long as they are of the whole; what has no length is left out."""
    found: list[Piece] = []
    start = 0.0
    for part in parts:
        share = part.size / whole if whole > 0 else 0.0
        if not math.isfinite(share) or share <= 0:
            continue
        width = min(100 * share, 100 - start)
        if width <= 0:
            break
        label = part.label if width >= _ROOM_FOR_WORDS else ""
        title = f"{part.name}: {part.figure}"
        found.append(Piece(part.kind, round(start, 3), round(width, 3), label, title))
        start += width
    return found
