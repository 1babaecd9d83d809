"""How fast items come and are answered at the moment: running means that forget."""

# How much of a mean the newest counts: of batches, and of answers, which come by the batch.
_NEW, _NEW_ANSWER = 0.1, 0.01
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
        # What batches take now, what they took when measured, and how far single ones are from that ratio.
        # In seconds: a small batch that was interrupted says little about large ones.
        self._took_s = self._measured_s = self._apart_s = 0.0
        # What answers wait for on their way out, and how far single ones are from that.
        self._out_s = self._out_apart_s = 0.0

    def arrived(self) -> None:
        """One more came while the model worked.

        Those who come when they have just been answered are no sign that others will: they are here.
        """
        self._came += 1

    def answered(self, count: int, took_s: float, predicted_s: float | None = None) -> None:
        """So many were computed in this time; as much was to be expected by an earlier measurement."""
        if predicted_s:
            self._apart_s += _NEW * (abs(took_s - self.slowness * predicted_s) - self._apart_s)
            self._took_s += _NEW * (took_s - self._took_s)
            self._measured_s += _NEW * (predicted_s - self._measured_s)
        each = took_s / count
        self._item_s = each if self._item_s is None else (1 - _NEW) * self._item_s + _NEW * each
        if took_s > 0:
            rate = self._came / took_s
            self._per_s = rate if self._per_s is None else (1 - _NEW) * self._per_s + _NEW * rate
            self._came = 0

    def delivered(self, late_s: float) -> None:
        """An answer went out so long after it was computed: whoever sends it has others to refuse."""
        self._out_apart_s += _NEW_ANSWER * (abs(late_s - self._out_s) - self._out_apart_s)
        self._out_s += _NEW_ANSWER * (late_s - self._out_s)

    @property
    def delivery_s(self) -> float:
        """How long nearly all answers take to go out."""
        return self._out_s + _DEVIATIONS * self._out_apart_s

    @property
    def slowness(self) -> float:
        """How many times longer batches take now than when they were measured: others use the machine too."""
        return self._took_s / self._measured_s if self._measured_s else 1.0

    @property
    def spread_s(self) -> float:
        """How much longer than that nearly none takes."""
        return _DEVIATIONS * self._apart_s

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
