"""Calls without gradients, one by one at first, then as sums: a rollout may have millions."""

from collections.abc import Callable

from flatout.inside.log import Event

# Since the model was last called to train.
_ONE_BY_ONE = 256
_SUM_NS = 1_000_000_000


class EvaluationCalls:
    """Logs them."""

    def __init__(self, add: Callable[[Event], None]) -> None:
        self._add = add
        self._calls = 0
        # Calls that are not logged yet: the first and the last of them, and how many.
        self._first: Event | None = None
        self._last: Event = ()
        self._held = 0

    def called(self, event: Event) -> None:
        """One more has ended."""
        self._calls += 1
        if self._calls <= _ONE_BY_ONE:
            self._add(event)
            return
        self._first = self._first or event
        self._last = event
        self._held += 1
        if event[2] - self._first[1] > _SUM_NS:
            self._tell()

    def over(self) -> None:
        """What comes next is something else."""
        self._tell()
        self._calls = 0

    def _tell(self) -> None:
        """As one call from the first to the last, with how many there were."""
        if self._first is not None:
            kind, _, *rest = self._last
            self._add((kind, self._first[1], *rest, self._held))
            self._first, self._held = None, 0
