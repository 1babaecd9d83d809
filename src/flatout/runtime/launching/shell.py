"""Words for bash, as they were given: whatever is in them, the program receives the same bytes."""

import shlex
import unicodedata
from collections.abc import Iterable


def quoted(word: str) -> str:
    """One word for bash, on one line: sbatch refuses a script that has the line ends of DOS in it."""
    if not any(_is_unprintable(character) for character in word):
        return shlex.quote(word)
    return "$'" + "".join(map(_escaped, word)) + "'"


def joined(words: Iterable[str]) -> str:
    """Words with blanks between them."""
    return " ".join(map(quoted, words))


def array(name: str, lines: Iterable[str]) -> list[str]:
    """The lines of a bash array; what stands in `lines` is quoted already."""
    return [f"{name}=(", *(f"  {line}" for line in lines), ")"]


def _is_unprintable(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def _escaped(character: str) -> str:
    if character in ("'", "\\"):
        return "\\" + character
    if not _is_unprintable(character):
        return character
    # By bytes: bash would read \u by the locale, which is another one there.
    return "".join(f"\\x{byte:02x}" for byte in character.encode())
