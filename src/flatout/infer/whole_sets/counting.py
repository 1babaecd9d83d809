"""Whether each sample of the data set has its own output: only then can a run be resumed by counting them."""

from flatout.records.errors import CallerMistake


class Expected:
    """How many outputs the next batch should have: whole batches, but for the last."""

    def __init__(self, size: int, left: int | None) -> None:
        self._size = size
        # Samples that are to come, where that is known.
        self._left = left
        self._was_last = False

    def heard(self, counts: list[int]) -> None:
        """One more batch, in so many parts; raises CallerMistake where samples were lost or made up."""
        found = sum(counts)
        wanted = self._size if self._left is None else min(self._size, self._left)
        # Without a length, a batch that is too small may be the last one: if another comes, it was not.
        may_be_last = self._left is None and 0 < found < wanted
        if self._was_last or (found != wanted and not may_be_last):
            raise CallerMistake(
                f"a batch of {wanted} samples came with outputs for {found}"
                if not self._was_last
                else "a batch in the middle came with outputs for fewer samples than it has",
                expected="one output for each sample: a run is resumed by counting them",
                remedy="leave bad samples out in the data set, not in collate_fn; or answer them with a mark",
            )
        self._was_last = may_be_last
        if self._left is not None:
            self._left -= found
