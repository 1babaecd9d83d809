"""Whether a life that came back does what the one before did next: its updates up to the kill were noted."""

import dataclasses
import json
import math
from typing import Any

from flatout.runtime.protect.journal import Lines, Read

# Kernels of a GPU add in another order from run to run.
_ROUNDING = 1e-3
# Of what an update changes: rounding may turn a number that hardly matters, and not most of them.
_OF_A_CHANGE = 0.25
# Of the numbers themselves, whatever an update changes: the last bits of a float.
_SMALLEST = 1e-6


@dataclasses.dataclass(frozen=True)
class Verdict:
    """All is compared, or something differs."""

    repeats: bool
    words: str


class Verifying:
    """Compares numbers read, and checksums of what was learned, update by update."""

    def __init__(self) -> None:
        self._then: Lines | None = None
        self._last = 0
        self._same = 0
        self._exact = True
        # What was learned at the place that it is brought back to.
        self._at_first: list[float] = []

    def begins_with(self, proof: str) -> None:
        """Changes count from here."""
        self._at_first = _numbers(proof)

    def against(self, then: Lines) -> None:
        """What an earlier life noted after the place that it is brought back to."""
        self._then = then
        self._last = max([*then.reads, *then.proofs], default=0)

    def wants_proof(self, number: int) -> bool:
        """Whether a checksum of this update was noted then."""
        return self._then is not None and number in self._then.proofs

    def updated(self, number: int, reads: list[Read], proof: str) -> Verdict | None:
        """What there is to say, once."""
        then = self._then
        if then is None or not self._last:
            return None
        differs = self._proof_differs(then.proofs.get(number, ""), proof, number)
        differs = differs or self._reads_differ(then.reads.get(number, []), reads)
        self._same += number in then.proofs or number in then.reads
        if differs:
            self._then = None
            return Verdict(False, f"it does not repeat what it did before it was ended: {differs}")
        if number < self._last:
            return None
        self._then = None
        how = "the same" if self._exact else "the same but for rounding"
        return Verdict(True, f"the {self._same} updates that it had already made since then come out {how}")

    def _proof_differs(self, then: str, now: str, number: int) -> str:
        """A proof is a checksum and some numbers: where bits differ, what changed may still be the same."""
        if not then or not now or then == now:
            return ""
        self._exact = False
        before, after, first = _numbers(then), _numbers(now), self._at_first
        if len({len(before), len(after), len(first)}) > 1:
            return ""
        change, apart = math.dist(before, first), math.dist(before, after)
        least = _SMALLEST * math.hypot(*first)
        is_same = apart <= _OF_A_CHANGE * change + least or math.isnan(change)
        return "" if is_same else f"what it has learned after update {number}"

    def _reads_differ(self, then: list[Read], now: list[Read]) -> str:
        for (place, before), (where, value) in zip(then, now, strict=False):
            if place != where:
                return f"it is at {where}, and was at {place}"
            if before == value or _is_nan(before, value):
                continue
            self._exact = False
            if not (isinstance(before, float) and isinstance(value, float) and _is_close(before, value)):
                return f"{where} read {value}, and had read {before}"
        return ""


def _numbers(proof: str) -> list[float]:
    """Those that it has as they were."""
    try:
        found = json.loads(proof.partition(":")[2])
    except ValueError:
        return []
    return found if isinstance(found, list) else []


def _is_nan(*values: Any) -> bool:
    return all(isinstance(value, float) and math.isnan(value) for value in values)


def _is_close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_ROUNDING) or _is_nan(one, other)
