"""Figures of lessons in words: each unit as people write it."""

from flatout.records.learn import Origin, Unit
from flatout.records.words import byte_rate, duration, flop_rate, memory_size, percent, three_digits
from flatout.report.figures import number

# How a figure is marked that was not measured here.
ORIGINS: dict[Origin, str] = {
    "measured": "measured here",
    "rated": "rated, not measured",
    "computed": "computed, not measured",
}


def figure_words(value: float, unit: Unit) -> str:
    """`8.60 GB/s`, `12 us`, `3.1 times`."""
    if unit == "bytes":
        return memory_size(value) if value >= 1024 else f"{value:.0f} bytes"
    if unit == "times":
        return f"{three_digits(value)} times"
    if unit == "FLOP/byte":
        return f"{three_digits(value)} FLOP/byte"
    if unit in ("number", "steps"):
        whole = f"{value:,.0f}" if value == round(value) else number(value)
        return f"{whole} steps" if unit == "steps" else whole
    plain = {"bytes/s": byte_rate, "FLOP/s": flop_rate, "s": duration, "share": percent}
    return plain[unit](value)
