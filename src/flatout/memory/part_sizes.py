"""How large the parts of a batch are, from one batch to the next."""


class Sizes:
    """How large parts are: halved when memory runs out, doubled again when a size has lasted.

    A doubled size is on probation: if memory runs out before it has lasted, the size before it comes back,
    and the next try waits twice as long.
    """

    def __init__(self, asked: int | None, grow_after: int) -> None:
        self.asked = asked
        self.now = asked
        self._grow_after = grow_after
        self._patience = grow_after
        self._lasted = 0
        # What is known to fit, while `now` is on probation.
        self._before: int | None = None

    def next(self) -> int | None:
        """The size for the next batch; None for the whole of it."""
        if self.now is None or self.now == self.asked or self._lasted < self._patience:
            return self.now
        if self._before is not None:
            self._patience = self._grow_after
        self._before = self.now
        self.now = 2 * self.now if self.asked is None else min(2 * self.now, self.asked)
        self._lasted = 0
        return self.now

    def smaller_than(self, size: int) -> int:
        """What to try when `size` ran out; 0 where nothing is left."""
        if self._before is not None and self._before < size:
            return self._before
        return (size + 1) // 2 if size > 1 else 0

    def ran_out(self, size: int) -> None:
        """From now on this one."""
        if self._before is not None:
            self._patience *= 2
        self._before = None
        self._lasted = 0
        self.now = size

    def went_well(self, samples: int) -> None:
        """A batch of so many samples got through. One that was not split says nothing of a larger size."""
        if self.now is not None and self.now < samples:
            self._lasted += 1
