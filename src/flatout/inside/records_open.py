"""How many of torch's records are open in a thread: inside of one no profiler may be started or stopped."""

import functools
import threading
from collections.abc import Callable
from typing import Any

from flatout.inside.tap import Patch, undo_all


class OpenRecords:
    """Counts `record_function` blocks: the script's own, and those of torch's optimizers around an update."""

    def __init__(self, torch: Any) -> None:
        self._thread = threading.local()
        # Called where the outermost record of a thread is about to begin: the last place outside of it.
        self.before_outermost: Callable[[], None] | None = None
        kind = torch.autograd.profiler.record_function
        self._patches = [
            Patch(kind, "__enter__", self._counting(kind.__enter__, +1)),
            Patch(kind, "__exit__", self._counting(kind.__exit__, -1)),
        ]

    def any(self) -> bool:
        """Whether one is open."""
        return bool(getattr(self._thread, "open", 0) > 0)

    def add(self, by: int) -> None:
        """Leave one of our own out, or take it in again before it ends."""
        self._thread.open = max(0, getattr(self._thread, "open", 0) + by)

    def remove(self) -> None:
        """Count no longer."""
        undo_all(self._patches)

    def _counting(self, real: Any, by: int) -> Any:
        thread, records = self._thread, self

        @functools.wraps(real)
        def counted(*args: Any, **kwargs: Any) -> Any:
            if by > 0 and records.before_outermost is not None and not records.any():
                records.before_outermost()
            thread.open = max(0, getattr(thread, "open", 0) + by)
            return real(*args, **kwargs)

        return counted
