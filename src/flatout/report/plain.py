"""Text from outside (device names, file names, messages of tools), made harmless for a terminal."""

from rich.console import Console
from rich.text import Text

from flatout.records.words import inert

__all__ = ["NARROW", "inert", "is_narrow", "line"]

NARROW = 80


def line(text: str, style: str = "") -> Text:
    """Inert text in a style; never read as markup."""
    return Text(inert(text), style=style)


def is_narrow(console: Console) -> bool:
    """Whether a table would be squeezed beyond reading."""
    return console.width < NARROW
