"""At the end of a trial in which memory grew: who holds what its last steps left behind.

The steps that are recorded and counted after the timed ones come anyway. What lives is noted between them, so
that no timed step waits for it, and the holders are looked up before the process goes.
"""

import dataclasses
from typing import TYPE_CHECKING

from flatout.inside.retaining.retention import Retention

if TYPE_CHECKING:
    from flatout.inside.session import Session

# Between two marks whole steps must lie: a look may begin in the middle of one.
_APART = 2
# Bytes a step: about half of what a finding needs.
_RISE = 32 << 10


class Leftovers:
    """Looks only where memory was seen to rise, or where that was ordered."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._retention: Retention | None = None
        self._marked = -_APART

    def mark(self) -> None:
        """Between two of the last steps."""
        session = self._session
        if self._retention is None:
            if not session.order.find_holders and session.memory_rise() < _RISE:
                return
            self._retention = Retention(session.torch, "cuda" if session.on_gpu else "cpu")
        if session.updates - self._marked >= _APART:
            self._marked = session.updates
            self._retention.mark(session.updates)

    def conclude(self) -> None:
        """After the very last step."""
        if self._retention is not None:
            held = self._retention.held(self._session.updates, self._session.memory_rise())
            self._session.facts["holders"] = [dataclasses.asdict(holder) for holder in held.holders]
            self._session.facts["holders_notes"] = list(held.notes)
