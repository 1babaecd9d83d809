"""The end of a trial: after the last timed step some more, each looked at in another way, then the stop.

Counting begins and ends where an update ends, at a step's own boundary. A profiler does not: torch's
optimizers record their `step` for it, and one that is started or stopped inside of such a record crashes the
process, now or when its remains are collected. So a recording begins and ends where a model's call begins;
or, where models are called by updates, before such a record.
"""

import itertools
import statistics
import time
from collections import deque
from typing import TYPE_CHECKING

from flatout.inside.counting import Counting
from flatout.inside.leftovers import Leftovers
from flatout.inside.window import Window

if TYPE_CHECKING:
    from flatout.inside.session import Session

_RECENT = 9


class Ending:
    """Knows when a trial has seen enough, and what is still to be looked at then."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self.after = session.order.stop_after_updates
        order = session.order
        self._to_come: deque[Window | Counting] = deque()
        if order.record:
            self._to_come += (Window(session, details=False), Window(session, details=True))
        if order.count_flops:
            self._to_come.append(Counting(session))
        self._now: Window | Counting | None = None
        self._leftovers = Leftovers(session)
        # Whether the next call of a model has to be told.
        self.waits_for_a_call = self._waits_longer = False
        self._is_over = False
        # When the last steps ended, in seconds.
        self._ends: deque[float] = deque(maxlen=_RECENT)

    @property
    def counting(self) -> Counting | None:
        """The count of operations that is under way."""
        return self._now if isinstance(self._now, Counting) else None

    def step_s(self) -> float:
        """About how long a step takes."""
        lengths = [after - before for before, after in itertools.pairwise(self._ends)]
        return statistics.median(lengths) if lengths else 0.0

    def ask(self, updates: int) -> None:
        """The parent has seen enough: stop after so many updates, unless the end has begun already."""
        session = self._session
        if "timed_updates" not in session.facts:
            self.after = updates
            session.watching = True  # the next update takes the way on which a trial can end

    def look(self, updates: int) -> None:
        """A step boundary."""
        self._ends.append(time.monotonic())
        if self._waits_longer:
            self._waits_longer = False
            return
        if self.waits_for_a_call:
            self.do_without_calls("no model is called in a step")
        elif isinstance(self._now, Window):
            self.waits_for_a_call = True
        if self.after is None or updates < self.after:
            return
        self._session.facts.setdefault("timed_updates", self._session.updates)
        self._is_over = True
        if not isinstance(self._now, Window):
            self._go_on(in_call=False)

    def call_begins(self) -> None:
        """A model is called, for the first time since the last step ended."""
        self.waits_for_a_call = False
        now = self._now
        if isinstance(now, Window):
            self._session.guarded(now.name, now.step)
        if self._is_over:
            self._go_on(in_call=True)

    def wait_one_step_more(self) -> None:
        """Where a recording may begin is known by now, and comes with the next step."""
        self._waits_longer = self.waits_for_a_call and self._now is None

    def _go_on(self, *, in_call: bool) -> None:
        """To the next way of looking, or out."""
        session = self._session
        if self._now is not None:
            ended, self._now = self._now, None
            session.guarded(ended.name, ended.end)
        if self._to_come:
            session.guarded("holders", self._leftovers.mark)
        while self._to_come:
            if isinstance(self._to_come[0], Window) != in_call:
                # Wait for where it may begin: the next call, or the end of this step.
                self.waits_for_a_call, self._is_over = not in_call, not in_call
                self.after = session.updates + 1
                return
            coming = self._to_come.popleft()
            try:
                coming.begin()
            except Exception as error:  # noqa: BLE001 - a trial that is not looked at so is still a trial
                session.facts[f"{coming.name}_reason"] = f"{type(error).__name__}: {error}"
                continue
            self._now, self._is_over = coming, False
            self.after = session.updates + coming.steps
            return
        session.guarded("holders", self._leftovers.conclude)
        session.stop()

    def do_without_calls(self, reason: str) -> None:
        """There is no place to record from or to."""
        if not self.waits_for_a_call:
            return
        self.waits_for_a_call = False
        if isinstance(self._now, Window):
            self._now.abandon()
            self._now = None
        self._to_come = deque(one for one in self._to_come if not isinstance(one, Window))
        self._session.facts["trace_reason"] = reason

    # What happens in the step whose operations are counted

    def backward_begins(self) -> None:
        """Operations from here on are the backward pass's."""
        if isinstance(self._now, Counting):
            self._now.backward_begins()

    def backward_ended(self) -> None:
        """And from here on not."""
        if isinstance(self._now, Counting):
            self._now.backward_ended()

    def update_begins(self) -> None:
        """What the optimizer does is no work of the model."""
        if isinstance(self._now, Counting):
            self._now.update_begins()

    def raised(self, error: BaseException) -> None:
        """The script cannot run while it is looked at so closely: what was timed before is complete."""
        if self._now is not None:
            self._session.facts[f"{self._now.name}_reason"] = f"{type(error).__name__}: {error}"
            self._now.abandon()
            self._session.stop()
