"""How fast items come and are answered at the moment: running means that forget."""

# How much of a mean the newest counts.
_NEW = 0.1
# What got slower is believed sooner than what got faster: late answers are worse than refusals.
_WORSE = 0.5
# A promise holds for nearly all, not for half of them: so many mean deviations are added to a mean.
_DEVIATIONS = 3.0
# Where nothing was answered yet, a client may ask again after this.
_UNKNOWN_S = 1.0


class Pace:
    """Arrivals, and answers while the model works."""

    def __init__(self) -> None:
        self._came = 0
        self._per_s: float | None = None
        self._item_s: float | None = None
        # How many times longer batches take now than when they were measured, and how much that varies.
        self._slower, self._varies = 1.0, 0.0

    def arrived(self) -> None:
        """One more came while the model worked.

        Those who come when they have just been answered are no sign that others will: they are here.
        """
        self._came += 1

    def answered(self, count: int, took_s: float, predicted_s: float | None = None) -> None:
        """So many were computed in this time; as much was to be expected by an earlier measurement."""
        if predicted_s:
            apart = took_s / predicted_s - self._slower
            self._slower += (_WORSE if apart > 0 else _NEW) * apart
            self._varies += _NEW * (abs(apart) - self._varies)
        each = took_s / count
        self._item_s = each if self._item_s is None else (1 - _NEW) * self._item_s + _NEW * each
        if took_s > 0:
            rate = self._came / took_s
            self._per_s = rate if self._per_s is None else (1 - _NEW) * self._per_s + _NEW * rate
            self._came = 0

    @property
    def slowness(self) -> float:
        """By how much nearly all batches stay below: others use the machine too, now more, now less."""
        return self._slower + _DEVIATIONS * self._varies

    def expected(self, within_s: float) -> int:
        """How many should arrive in this time."""
        return max(0, int(within_s * (self._per_s or 0.0)))

    @property
    def items_per_s(self) -> float | None:
        """What the model answers in a second; None before its first answer."""
        return None if not self._item_s else 1 / self._item_s

    def seconds_for(self, items: int) -> float:
        """How long so many will take."""
        return _UNKNOWN_S if self._item_s is None else items * self._item_s
