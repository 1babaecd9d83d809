"""Sizes as people type them."""

import click
import pytest

from flatout.cli.options import Size


@pytest.mark.parametrize(
    ("typed", "size"),
    [("40GiB", 40 << 30), ("512MiB", 512 << 20), ("80GB", 80 * 10**9), ("1.5g", 3 << 29), ("64000", 64000)],
)
def test_a_size_is_bytes(typed: str, size: int) -> None:
    assert Size().convert(typed, None, None) == size


@pytest.mark.parametrize("typed", ["", "GiB", "-1GiB", "0", "4e400", "nan", "40 apples"])
def test_what_is_no_size_is_refused(typed: str) -> None:
    with pytest.raises(click.BadParameter):
        Size().convert(typed, None, None)


def test_memory_without_a_unit_is_asked_for_it() -> None:
    memory = Size(of_memory=True)
    with pytest.raises(click.BadParameter, match="40GiB, or 40MiB"):
        memory.convert("40", None, None)
    assert memory.convert("40000000000", None, None) == 40_000_000_000
    assert memory.convert("1MiB", None, None) == 1 << 20
