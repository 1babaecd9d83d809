"""Figures as reports write them: times of a step, rates, counts, speedups."""

import math

from flatout.records.words import three_digits


def milliseconds(value: float) -> str:
    """A time of a step: `22.8 ms`, `1.50 s`, `50 us`."""
    if not math.isfinite(value):
        return "unknown"
    if value >= 1000:
        return f"{three_digits(value / 1000)} s"
    return f"{three_digits(value)} ms" if value >= 0.1 else f"{value * 1000:.0f} us"


def number(value: float | None) -> str:
    """A rate without its unit: `2,795`, `38.9`."""
    if value is None:
        return "?"
    return f"{value:,.0f}" if value >= 1000 else three_digits(value)


def calls(value: float) -> str:
    """How often in a step: whole where it is, as most are."""
    return f"{value:,.0f}" if value >= 1 and abs(value - round(value)) < 0.005 else number(value)


def count(value: int) -> str:
    """A large count, in its own unit: `124 M`."""
    for unit, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{three_digits(value / size)} {unit}"
    return str(value)


def times(value: float | None) -> str:
    """A speedup; nothing where there is none."""
    return f"{value:.2f}x" if value is not None and math.isfinite(value) else ""
