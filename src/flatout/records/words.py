"""Numbers for people: bytes, rates, times. Rates in powers of ten, memory in GiB, as vendors and torch do.

And text from outside (names of devices and processes, messages of tools), made harmless for a terminal.
"""

import unicodedata
from collections.abc import Mapping

_GIB = 1 << 30
_MIB = 1 << 20


def memory_size(count: float) -> str:
    """Bytes of memory: "139.8 GiB", or MiB or KiB when small."""
    if count >= _GIB:
        return f"{count / _GIB:.1f} GiB"
    return f"{count / _MIB:.0f} MiB" if count >= _MIB or not count else f"{count / 1024:.0f} KiB"


def byte_rate(bytes_per_s: float) -> str:
    """Bytes a second: "4.29 TB/s", "55.2 GB/s"."""
    for unit, size in (("TB/s", 1e12), ("GB/s", 1e9), ("MB/s", 1e6)):
        if bytes_per_s >= size:
            return f"{three_digits(bytes_per_s / size)} {unit}"
    return f"{bytes_per_s:.0f} B/s"


def flop_rate(flops_per_s: float) -> str:
    """Operations a second: "780 TFLOP/s", "91.2 GFLOP/s"."""
    for unit, size in (("PFLOP/s", 1e16), ("TFLOP/s", 1e12), ("GFLOP/s", 1e9), ("MFLOP/s", 1e6)):
        if flops_per_s >= size:
            return f"{three_digits(flops_per_s / (1e15 if unit == 'PFLOP/s' else size))} {unit}"
    return f"{flops_per_s:.0f} FLOP/s"


def duration(seconds: float) -> str:
    """A short time: "9.4 us", "12.1 ms", "3.2 s"."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{three_digits(seconds / size)} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def age(seconds: float) -> str:
    """A longer time: "45 s", "12 min", "3 h 20 min", "4 d 2 h"."""
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if days:
        return f"{days} d {hours % 24} h" if hours % 24 else f"{days} d"
    if hours:
        return f"{hours} h {minutes % 60} min" if minutes % 60 else f"{hours} h"
    return f"{minutes} min" if minutes else f"{seconds:.0f} s"


def three_digits(value: float) -> str:
    """Three significant digits, and never an exponent."""
    if value >= 99.95:  # what would round to 100.0
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def percent(share: float) -> str:
    """A share as a percentage."""
    if 0 < share < 0.0005:
        return "< 0.1 %"
    return f"{100 * share:.0f} %" if share >= 0.095 else f"{100 * share:.1f} %"


def with_settings(name: str, settings: Mapping[str, object]) -> str:
    """A lever as in a sentence: `compile (reduce-overhead)`; `_names` are for the lever alone."""
    values = [
        value if isinstance(value, str) else f"{key}={value}"
        for key, value in settings.items()
        if not key.startswith("_")
    ]
    return f"{name} ({', '.join(values)})" if values else name


def inert(text: str, *, but: str = "") -> str:
    """The same text on one line, with control characters, `but` these, shown as escapes instead of obeyed."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character
        if character in but or unicodedata.category(character)[0] != "C"
        else character.encode("unicode_escape").decode()
        for character in text
    )


def as_utf8(text: str) -> str:
    """Bytes that are not UTF-8 reach us as lone surrogates (arguments, file names); our files have none."""
    return text.encode("utf-8", "backslashreplace").decode()
