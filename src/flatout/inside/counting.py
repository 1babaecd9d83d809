"""The very last step of a trial: its operations are counted."""

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flatout.inside.session import Session


class Counting:
    """One step under the counter of operations."""

    name = "flops"
    steps = 1

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._count: Any = None
        self._in_backward = False

    def begin(self) -> None:
        """Count from here on."""
        from flatout.inside.flops import start_counting

        self._count = start_counting(self._session.torch)

    def step(self) -> None:
        """Its only step ends with it."""

    def end(self) -> None:
        """Hand over what was counted; the shapes that were seen are timed."""
        session = self._session
        totals, self._count = self._count.stop(), None
        session.facts["flops"] = {**dataclasses.asdict(totals), "update": session.updates}
        if session.habits is not None and session.on_gpu and totals.attention:
            session.guarded("habits", session.habits.time_attention, totals)

    def abandon(self) -> None:
        """The script raised, perhaps because of us: it is ended anyway."""

    def backward_begins(self) -> None:
        """Operations from here on are the backward pass's."""
        self._count.in_backward = self._in_backward = True

    def backward_ended(self) -> None:
        """And from here on not."""
        self._count.in_backward = False

    def update_begins(self) -> None:
        """An optimizer's own products are no work of the model; a closure's are, and run inside its step."""
        if self._in_backward:
            self._count.stop()
