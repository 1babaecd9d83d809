"""Text from outside (device names, file names, messages of tools), made harmless for a terminal."""

import unicodedata

from rich.console import Console
from rich.text import Text

NARROW = 80


def inert(text: str) -> str:
    """The same text on one line, with control characters shown as escapes instead of obeyed."""
    return "".join(
        character
        if unicodedata.category(character)[0] != "C"
        else character.encode("unicode_escape").decode()
        for character in text
    )


def line(text: str, style: str = "") -> Text:
    """Inert text in a style; never read as markup."""
    return Text(inert(text), style=style)


def is_narrow(console: Console) -> bool:
    """Whether a table would be squeezed beyond reading."""
    return console.width < NARROW
