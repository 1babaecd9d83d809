"""What lessons share in saying things: prose with figures in it, rows of rated hardware, large counts."""

from collections.abc import Sequence

from flatout.records.learn import TablePicture
from flatout.records.rated import RatedGpu
from flatout.records.words import three_digits

_UNITS = (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3))


def rated_rows(
    title: str, header: tuple[str, ...], rows: Sequence[tuple[RatedGpu, tuple[str, ...]]]
) -> TablePicture | None:
    """A table of what vendors promise; None where there is nothing to compare with."""
    if not rows:
        return None
    return TablePicture(
        title=title,
        header=("GPU", *header),
        rows=tuple((gpu.name, *cells) for gpu, cells in rows),
        origin="rated",
        caption="Rated by their vendors, not measured here.",
    )


def paragraphs(text: str, **values: object) -> tuple[str, ...]:
    """Prose as it is written in a lesson's file, with its figures filled in: a blank line between two."""
    return tuple(" ".join(one.split()) for one in text.format(**values).strip().split("\n\n"))


def sentence(text: str, **values: object) -> str:
    """One paragraph of the same."""
    return " ".join(text.format(**values).split())


def count_words(count: float) -> str:
    """A number of parameters as people say it: `7 B`, `124 M`."""
    for unit, size in _UNITS:
        if count >= size:
            return f"{three_digits(count / size).removesuffix('.00').removesuffix('.0')} {unit}"
    return f"{count:.0f}"
