"""The step clock: a step is an optimizer update, by the optimizer that trains.

Global hooks see every optimizer of the process. Which one leads is known when one of them comes around
again: until then updates are held, so that the first cycle of a GAN counts as one step, not as two.
"""

import functools
import importlib
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from flatout.inside.by_hand import ByHand
from flatout.inside.tap import Patch, clock, undo_all, unseen
from flatout.levers.places import locals_of

if TYPE_CHECKING:
    from flatout.inside.session import Session

# Updates by others since the leader's last: a leader that is silent for so long has been replaced.
_SILENCE = 50


class StepsTap:
    """Tells the session of each update of the leading optimizer."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._handles: list[Any] = []
        self._patches: list[Patch] = []
        self._started: list[int] = []
        # Optimizers whose `step` is being run, the outermost first.
        self._under_way: list[int] = []
        self._is_off = self._in_a_hook = False
        self._by_hand = ByHand(session)
        self.restart()

    def restart(self) -> None:
        """Forget who leads: in a forked child its own optimizer does, whichever led in the parent."""
        self._parameters: dict[int, int] = {}
        self._updates: dict[int, int] = {}
        # The time of an optimizer's first update, until it is known who leads.
        self._held: dict[int, int] = {}
        self._known: dict[int, Any] = {}
        self._lead: int | None = None
        self._silence = 0
        self._updated_in_backward: list[Any] = []

    def install(self) -> None:
        """Register the two global hooks, and watch the GradScaler for updates that it skips."""
        optimizer = importlib.import_module("torch.optim.optimizer")
        self._handles = [
            optimizer.register_optimizer_step_pre_hook(self._before),
            optimizer.register_optimizer_step_post_hook(self._after),
        ]
        scaler = self._session.torch.amp.GradScaler
        base = optimizer.Optimizer
        self._patches = [
            Patch(scaler, "step", self._watching_for_skips(scaler.step)),
            Patch(base, "__init__", self._watching_for_new_ones(base.__init__)),
        ]
        self._by_hand.install()

    def remove(self) -> None:
        """Take the hooks off; while torch goes through them, they only do nothing any more."""
        self._is_off = True
        undo_all(self._patches)
        self._by_hand.remove()
        if not self._in_a_hook:
            for handle in self._handles:
                handle.remove()

    def flush(self) -> None:
        """The process ends before any optimizer came around again: what is held is a step."""
        if self._lead is None and self._held:
            self._choose_and_close_the_first()

    def lead(self) -> Any:
        """The optimizer that leads, or None."""
        found = self._known.get(self._lead) if self._lead is not None else None
        return found() if found is not None else None

    def optimizers(self) -> list[Any]:
        """Every optimizer that has made an update and still lives."""
        return [optimizer for ref in self._known.values() if (optimizer := ref()) is not None]

    def _before(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self._is_off:
            return
        session, under_way, key = self._session, self._under_way, id(optimizer)
        if under_way:
            under_way[:] = _really_under_way()
        under_way.append(key)
        if not session.watching or (len(under_way) > 1 and key in under_way[:-1]):
            return
        try:
            if session.detailed:
                session.gpu.mark("optimizer")
            if session.inspection is not None:
                session.guarded("inspection", session.inspection.before_update, optimizer)
            if session.guarding is not None:
                session.guarded("guarding", session.guarding.before_update, optimizer)
            if session.ending.counting is not None and key == self._lead:
                session.ending.update_begins()
            if session.ranges is not None:
                session.ranges.push("optimizer")
            session.busy += 1
            self._started.append(clock())
        except Exception as error:  # noqa: BLE001 - observing never breaks a job
            self._fail(error)

    def _after(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self._is_off:
            return
        session, under_way, key = self._session, self._under_way, id(optimizer)
        if under_way:
            under_way.pop()
            if key in under_way:
                return  # a subclass that calls its parent's step: the outer one is the update
        if not session.watching:
            if key == self._lead:
                self._updates[key] += 1
                self._silence = 0
                session.close_unwatched(clock())
                return
            if self._follows(optimizer, key):
                self._updates[key] += 1
                self._silence += 1
                return
            session.watching = True
        try:
            now = clock()
            if not self._started:  # the step began before anybody looked
                self._updated(optimizer, now)
                return
            session.busy -= 1
            session.log.add(("optimizer", self._started.pop(), now))
            if session.guarding is not None:
                session.guarded("guarding", session.guarding.after_update, optimizer)
            if session.ranges is not None:
                session.ranges.pop()
            if session.in_backward:
                self._updated_in_backward.append(optimizer)
            else:
                self._updated(optimizer, now)
        except Exception as error:  # noqa: BLE001 - observing never breaks a job
            self._fail(error)

    def _follows(self, optimizer: Any, key: int) -> bool:
        """Whether it is one of several, behind one that leads and is still heard of."""
        known = self._known.get(key)
        is_known = known is not None and known() is optimizer
        return is_known and self.lead() is not None and self._silence < _SILENCE

    def _fail(self, error: Exception) -> None:
        self._in_a_hook = True
        self._session.fail("steps", error)
        self._in_a_hook = False

    def backward_ended(self, now: int) -> None:
        """The updates that hooks made during one backward pass are one step, however many there were."""
        if self._updated_in_backward:
            optimizers, self._updated_in_backward = self._updated_in_backward, []
            leads = [optimizer for optimizer in optimizers if id(optimizer) == self._lead]
            self._updated(leads[0] if leads else max(optimizers, key=_parameters), now)

    def _updated(self, optimizer: Any, now: int) -> None:
        key = id(optimizer)
        if key == self._lead:
            self._silence = 0
            self._updates[key] += 1
            self._session.close_step(now)
        else:
            self._consider(optimizer, key, now)

    def _consider(self, optimizer: Any, key: int, now: int) -> None:
        """An update by an optimizer that does not lead, or does not lead yet."""
        known = self._known.get(key)
        if known is None or known() is not optimizer:
            self._known[key] = weakref.ref(optimizer)
            self._parameters[key] = _parameters(optimizer)
            self._updates[key] = 0
        self._updates[key] += 1
        self._silence += 1
        if self._lead is not None:
            if self.lead() is not None and self._silence <= _SILENCE:
                return
            self._lead, self._held = None, {}
        if key not in self._held:
            self._held[key] = now
            return
        if key == self._choose_and_close_the_first():
            self._silence = 0
            self._session.close_step(now)

    def _choose_and_close_the_first(self) -> int:
        """The optimizer with the most parameters leads; among equals, the one that came last."""
        order = list(self._held)
        lead = max(order, key=lambda key: (self._parameters[key], order.index(key)))
        self._lead = lead
        ended_ns, self._held = self._held[lead], {}
        self._session.close_step(ended_ns, late=True)
        return lead

    def _watching_for_new_ones(self, real: Callable[..., None]) -> Callable[..., None]:
        session, by_hand = self._session, self._by_hand

        @functools.wraps(real)
        def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            real(optimizer, *args, **kwargs)
            by_hand.optimizer_made(optimizer)
            session.guarded("steps", session.optimizer_made, optimizer)

        return unseen(__init__)

    def _watching_for_skips(self, real: Callable[..., Any]) -> Callable[..., Any]:
        session, log, tap = self._session, self._session.log.add, self

        @functools.wraps(real)
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            updates = tap._updates
            before = updates.get(id(optimizer), 0)
            watching = session.watching
            result = real(scaler, optimizer, *args, **kwargs)
            if watching and session.bench is None and scaler.is_enabled():
                session.guarded("loss scale", session.gpu.scale.look, scaler)
            if scaler.is_enabled() and updates.get(id(optimizer), 0) == before:
                now = clock()
                log(("skip", now, now))
            return result

        return unseen(step)


def _really_under_way() -> list[int]:
    """Optimizers whose `step` is on the stack, outermost first, without the one that is about to begin.

    A step that raised never told of its end: the stack knows better than a list.
    """
    found: list[int] = []
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001
    while frame is not None:
        code = frame.f_code
        if code.co_name == "wrapper" and code.co_filename.endswith("optim/optimizer.py"):
            found.append(id(locals_of(frame).get("self")))
        frame = frame.f_back
    return found[:0:-1]


def _parameters(optimizer: Any) -> int:
    return sum(int(p.numel()) for group in optimizer.param_groups for p in group["params"])
