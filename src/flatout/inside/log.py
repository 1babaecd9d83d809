"""What happened, in the order in which it ended: taps add a tuple, a thread writes them down, others think.

A tap costs its clock readings and one append. What nests in what, where evaluation begins and what belongs to
which step is worked out from the file, in Flatout's own process (`analyze/replay.py`).
"""

import collections
from typing import Any

Event = tuple[Any, ...]


class EventLog:
    """A queue that one thread fills and another empties; both ends are atomic."""

    def __init__(self) -> None:
        self._events: collections.deque[Event] = collections.deque()
        # Bound once: this is the hottest call of all.
        self.add = self._events.append

    def drain(self) -> list[Event]:
        """Take everything that is there."""
        events = self._events
        taken = []
        while events:
            taken.append(events.popleft())
        return taken
