"""A process that is held on to: a signal reaches it or nobody, though its pid be given to another."""

import contextlib
import os
import select
import signal
from collections.abc import Callable

from flatout.runtime.process_table import Seen, has_ended, start_of


class Pin:
    """Holds on to a process that was seen; made of one that has ended meanwhile, it is `gone` at once."""

    def __init__(self, process: Seen, *, start_now: Callable[[int], float | None] = start_of) -> None:
        self.process = process
        self._start_now = start_now
        self._descriptor: int | None = None
        with contextlib.suppress(OSError, AttributeError):  # ended; or a system without such descriptors
            self._descriptor = os.pidfd_open(process.pid)
        # First the descriptor, then the look: whoever has the old start time now had it in between.
        if start_now(process.pid) != process.start:
            self.close()

    @property
    def pid(self) -> int:
        """Its number."""
        return self.process.pid

    @property
    def gone(self) -> bool:
        """Whether it has ended, though its parent may not have taken notice."""
        if self._descriptor is None:
            return has_ended(self.pid, self.process.start)
        ended = select.poll()  # `select` has no room for more than 1024 descriptors
        ended.register(self._descriptor, select.POLLIN)
        return bool(ended.poll(0))

    def send(self, number: signal.Signals) -> bool:
        """Send it a signal; False when it has ended. Raises PermissionError."""
        try:
            if self._descriptor is not None:
                signal.pidfd_send_signal(self._descriptor, number)
                return True
            if self._start_now(self.pid) != self.process.start:
                return False
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def close(self) -> None:
        """Let go of it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
