"""What lessons share in saying things: rows of rated hardware, and large counts in words."""

from collections.abc import Sequence

from flatout.records.learn import TablePicture
from flatout.records.rated import RatedGpu
from flatout.records.words import three_digits

_UNITS = (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3))


def rated_rows(
    title: str, header: tuple[str, ...], rows: Sequence[tuple[RatedGpu, *tuple[str, ...]]]
) -> TablePicture | None:
    """A table of what vendors promise; None where there is nothing to compare with."""
    if not rows:
        return None
    return TablePicture(
        title=title,
        header=("GPU", *header),
        rows=tuple((gpu.name, *cells) for gpu, *cells in rows),
        origin="rated",
        caption="Rated by their vendors, not measured here.",
    )


def count_words(count: float) -> str:
    """A number of parameters as people say it: `7 B`, `124 M`."""
    for unit, size in _UNITS:
        if count >= size:
            return f"{three_digits(count / size).removesuffix('.00').removesuffix('.0')} {unit}"
    return f"{count:.0f}"
