"""Long pauses between two updates, evaluations above all: before one, it is worth saving.

A job that is asked to stop answers at its next update. In a long evaluation that may be later than its grace
allows; what it had learned before is then on the disk.
"""

# Shorter ones are over before anybody loses patience.
_LONG_S = 5.0


class Pauses:
    """After which updates the loop pauses, as far as it keeps a rhythm."""

    def __init__(self) -> None:
        self._number = 0
        self._ended_s = 0.0
        self._before: list[int] = []

    def is_before_one(self, number: int, now_s: float) -> bool:
        """At the end of an update: whether a pause should follow."""
        if self._number and now_s - self._ended_s > _LONG_S:
            self._before = [*self._before[-1:], self._number]
        self._number, self._ended_s = number, now_s
        if len(self._before) < 2:
            return False
        first, last = self._before
        period = last - first
        # A job whose every update takes long has no pauses.
        return period > 1 and number > last and (number - last) % period == 0
