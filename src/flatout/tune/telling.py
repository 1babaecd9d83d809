"""What a tuning has to tell of itself beside its figures: in the words of its notes."""

from collections.abc import Sequence
from typing import Any

from flatout.records.words import three_digits

# The same steps took so many times as long a little later.
_DISTURBED = 1.5


def told_of_allowed(allowed: dict[str, Any]) -> list[str]:
    """What levers that change the training did to it in the guard's runs."""
    if not allowed:
        return []
    names = ", ".join(allowed["levers"])
    if "allowed" not in allowed:
        return [f"{names} changes the training, as you allowed; no loss was seen"]
    over = f"over the last of {allowed['steps']:.0f} updates"
    losses = f"the loss is {allowed['allowed']:.4g}, as written {allowed['as_written']:.4g}"
    return [f"{names} changes the training, as you allowed: {over} {losses}"]


def told_of_moods(as_written_ms: float, base_ms: Sequence[float]) -> list[str]:
    """A machine on which the same job takes now so long and then so long has something else to do."""
    if not base_ms:
        return []
    least, most = min(base_ms), max(base_ms)
    if as_written_ms > _DISTURBED * most or least > _DISTURBED * as_written_ms:
        least, most = min(least, as_written_ms), max(most, as_written_ms)
    if most < _DISTURBED * least:
        return []
    ends = " to ".join(f"{three_digits(ms)} ms" for ms in (least, most))
    return [f"other work runs on this machine: steps without levers took {ends} while tuning"]
