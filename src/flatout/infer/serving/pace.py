"""How fast items come and are answered at the moment: running means that forget."""

# How much of a mean the newest counts.
_NEW = 0.1
# What got slower is believed sooner than what got faster: late answers are worse than refusals.
_WORSE = 0.5
# Where nothing was answered yet, a client may ask again after this.
_UNKNOWN_S = 1.0
_MOST = 1 << 20


class Pace:
    """Arrivals, and answers while the model works."""

    def __init__(self) -> None:
        self._gap_s = float("inf")
        self._last_s: float | None = None
        self._item_s: float | None = None
        # How many times longer batches take now than when they were measured: others use the machine too.
        self.slowness = 1.0

    def arrived(self, now_s: float) -> None:
        """One more came."""
        if self._last_s is not None:
            gap = now_s - self._last_s
            self._gap_s = gap if self._gap_s == float("inf") else (1 - _NEW) * self._gap_s + _NEW * gap
        self._last_s = now_s

    def answered(self, count: int, took_s: float, predicted_s: float | None = None) -> None:
        """So many were computed in this time; as much was to be expected by an earlier measurement."""
        if predicted_s:
            now = took_s / predicted_s
            new = _WORSE if now > self.slowness else _NEW
            self.slowness += new * (now - self.slowness)
        each = took_s / count
        self._item_s = each if self._item_s is None else (1 - _NEW) * self._item_s + _NEW * each

    def expected(self, within_s: float, now_s: float) -> int:
        """How many should arrive in this time, by the gaps between those before."""
        if self._last_s is None or within_s <= 0:
            return 0
        gap_s = max(self._gap_s, now_s - self._last_s)
        return min(_MOST, int(within_s / gap_s)) if gap_s > 0 else _MOST

    @property
    def items_per_s(self) -> float | None:
        """What the model answers in a second; None before its first answer."""
        return None if not self._item_s else 1 / self._item_s

    def seconds_for(self, items: int) -> float:
        """How long so many will take."""
        return _UNKNOWN_S if self._item_s is None else items * self._item_s
