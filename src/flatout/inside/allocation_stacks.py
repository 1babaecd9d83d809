"""The stacks of what a GPU's allocator hands out: kept while they are likely to be wanted.

A host that launches many small kernels pays a sixth of its time for them. They are kept during the first
updates, in which parameters, states and the first activations come into being, and from when the device is
nearly full. What was handed out meanwhile stays known for as long as it lives.
"""

import contextlib
from typing import Any

from flatout.inside.pairing import is_capturing

# Most jobs that do not fit fail by then: the second update is the first with all states of the optimizer.
_FIRST_UPDATES = 3
_NEARLY_FULL = 0.7


class AllocationStacks:
    """Turns them on and off; leaves them alone where the script keeps its own."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._record: Any = None
        self.are_kept = False

    def begin(self) -> None:
        """From here on, which is before the first use of the device."""
        memory = self._torch.cuda.memory
        self._record = memory._record_memory_history  # noqa: SLF001
        memory._record_memory_history = self._the_scripts_own  # noqa: SLF001
        self._keep()

    def end(self) -> None:
        """The script's door again; what is kept stays."""
        memory = self._torch.cuda.memory
        if self._record is not None and memory._record_memory_history == self._the_scripts_own:  # noqa: SLF001
            memory._record_memory_history = self._record  # noqa: SLF001

    def look(self, updates: int, device: Any) -> None:
        """After an update: are they wanted?"""
        if self._record is None or updates < _FIRST_UPDATES or is_capturing(self._torch):
            return
        free, total = self._torch.cuda.mem_get_info(device)
        wanted = total - free >= _NEARLY_FULL * total
        if wanted and not self.are_kept:
            self._keep()
        elif self.are_kept and not wanted:
            self._record(None)
            self.are_kept = False

    def _keep(self) -> None:
        self._record("state", context="alloc", stacks="python")
        self.are_kept = True

    def _the_scripts_own(self, *args: Any, **kwargs: Any) -> Any:
        """The script, or a switch of ours, records itself: it knows what for."""
        record, self._record = self._record, None
        with contextlib.suppress(AttributeError):
            self._torch.cuda.memory._record_memory_history = record  # noqa: SLF001
        return record(*args, **kwargs)
