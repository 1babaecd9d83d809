"""Whether a life that came back does what the one before did next: its updates up to the kill were noted."""

import math
from typing import Any

from flatout.runtime.protect.journal import Lines, Read


class Verifying:
    """Compares numbers read, and checksums of what was learned, update by update."""

    def __init__(self) -> None:
        self._then: Lines | None = None
        self._last = 0
        self._same = 0
        self._differs: str = ""

    def against(self, then: Lines) -> None:
        """What an earlier life noted after the place that it is brought back to."""
        self._then = then
        self._last = max([*then.reads, *then.proofs], default=0)

    def wants_proof(self, number: int) -> bool:
        """Whether a checksum of this update was noted then."""
        return self._then is not None and number in self._then.proofs

    def updated(self, number: int, reads: list[Read], proof: str) -> str:
        """A sentence, once all is compared or something differs; else ""."""
        if self._then is None or not self._last:
            return ""
        then = self._then
        if number in then.proofs and proof and then.proofs[number] != proof:
            self._differs = f"what it has learned after update {number}"
        theirs = then.reads.get(number, [])
        if number in then.reads and not self._differs:
            self._differs = _difference(theirs, reads)
        self._same += number in then.proofs or bool(theirs)
        if self._differs:
            self._then = None
            return (
                f"it does not repeat what it did before it was ended: {self._differs}. That can be on a GPU, "
                "and where data is not the same twice"
            )
        if number >= self._last:
            self._then = None
            return f"the {self._same} updates that it had already made since then come out the same"
        return ""


def _difference(then: list[Read], now: list[Read]) -> str:
    for (place, before), (where, value) in zip(then, now, strict=False):
        if place != where:
            return f"it is at {where}, and was at {place}"
        if not _is_same(before, value):
            return f"{where} read {value}, and had read {before}"
    return ""


def _is_same(before: Any, now: Any) -> bool:
    if isinstance(before, float) and isinstance(now, float) and math.isnan(before) and math.isnan(now):
        return True
    return bool(before == now)
