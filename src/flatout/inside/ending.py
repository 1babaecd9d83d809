"""The end of a trial: after the last timed step one more, whose operations are counted, then the stop."""

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flatout.inside.session import Session


class Ending:
    """Knows when a trial has seen enough, and counts the operations of its very last step."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self.after = session.order.stop_after_updates
        self.counting: Any = None
        self._counted_backward = False

    def ask(self, updates: int) -> None:
        """The parent has seen enough: stop after so many updates, unless the end has begun already."""
        session = self._session
        if self.counting is None and "timed_updates" not in session.facts:
            self.after = updates
            session.watching = True  # the next update takes the way on which a trial can end

    def look(self, updates: int) -> None:
        """A step boundary."""
        if self.after is not None and updates >= self.after:
            self._end()

    def _end(self) -> None:
        session = self._session
        if self.counting is not None:
            totals, self.counting = self.counting.stop(), None
            session.facts["flops"] = dataclasses.asdict(totals)
            if session.habits is not None and session.on_gpu and totals.attention:
                session.guarded("habits", session.habits.time_attention, totals)
        elif session.order.count_flops and "flops" not in session.facts:
            try:
                from flatout.inside.flops import start_counting

                self.counting = start_counting(session.torch)
            except Exception as error:  # noqa: BLE001 - a trial without a count is still a trial
                session.facts["flops_reason"] = f"{type(error).__name__}: {error}"
            else:
                session.facts["timed_updates"] = session.updates
                self.after = session.updates + 1
                return
        session.stop()

    # What happens in the step whose operations are counted

    def backward_begins(self) -> None:
        """Operations from here on are the backward pass's."""
        if self.counting is not None:
            self.counting.in_backward = self._counted_backward = True

    def backward_ended(self) -> None:
        """And from here on not."""
        if self.counting is not None:
            self.counting.in_backward = False

    def update_begins(self) -> None:
        """An optimizer's own products are no work of the model; a closure's are, and run inside its step."""
        if self.counting is not None and self._counted_backward:
            self.counting.stop()

    def raised(self, error: BaseException) -> None:
        """The script cannot run while its operations are counted: what was timed before is complete."""
        if self.counting is not None:
            self._session.facts["flops_reason"] = f"{type(error).__name__}: {error}"
            self._session.stop()
