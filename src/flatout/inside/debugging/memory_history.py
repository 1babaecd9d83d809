"""Who asked for memory, and when."""

from flatout.inside.debugging.switch import Switch
from flatout.inside.snapshot_file import keep_snapshot
from flatout.records.session import MEMORY_HISTORY_FILE

# Of the newest events; each has a stack, and so many are still looked at with ease.
_EVENTS = 100_000


class MemoryHistory(Switch):
    """Torch's record of every block that was asked for and given back, with stacks, written at the end.

    A job that runs out of memory leaves it too, as it was at that moment.
    """

    name = "memory-history"
    shows = f"the last {_EVENTS:,} blocks of GPU memory with the lines that asked for them, as a file"
    cost = "some microseconds for each block, and host memory for the stacks"
    needs_cuda = True

    def turn_on(self) -> None:
        """With the first use of the device."""
        self._is_on = False
        self.at_first_use(self._begin)

    def turn_off(self) -> None:
        """Off."""
        if self._is_on:
            self.torch.cuda.memory._record_memory_history(enabled=None)  # noqa: SLF001
            self._is_on = False

    def close(self) -> None:
        """What torch has of it, in a file for pytorch.org/memory_viz."""
        if self._is_on:
            keep_snapshot(self.torch.cuda.memory._snapshot(), self.folder() / MEMORY_HISTORY_FILE)  # noqa: SLF001
            self.turn_off()

    def _begin(self) -> None:
        self.torch.cuda.memory._record_memory_history(max_entries=_EVENTS, stacks="python")  # noqa: SLF001
        self._is_on = True
