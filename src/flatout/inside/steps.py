"""The step clock: a step is an optimizer update, by the optimizer that trains.

Global hooks see every optimizer of the process. Which one leads is known when one of them comes around
again: until then updates are held, so that the first cycle of a GAN counts as one step, not as two.
"""

import functools
import importlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flatout.inside.draft import StepDraft
from flatout.inside.tap import Patch

if TYPE_CHECKING:
    from flatout.inside.session import Session


class StepsTap:
    """Closes the session's step at each update of the leading optimizer."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._parameters: dict[int, int] = {}
        self._updates: dict[int, int] = {}
        self._held: dict[int, tuple[int, StepDraft]] = {}
        self._lead: int | None = None
        self._started_ns = 0
        self._handles: list[Any] = []
        self._patch: Patch | None = None

    def install(self) -> None:
        """Register the two global hooks, and watch the GradScaler for updates that it skips."""
        optimizer = importlib.import_module("torch.optim.optimizer")
        self._handles = [
            optimizer.register_optimizer_step_pre_hook(self._before),
            optimizer.register_optimizer_step_post_hook(self._after),
        ]
        scaler = self._session.torch.amp.GradScaler
        self._patch = Patch(scaler, "step", self._watching_for_skips(scaler.step))

    def remove(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()
        if self._patch is not None:
            self._patch.undo()

    def restart(self) -> None:
        """In a forked child: its own optimizer leads there, whichever led in the parent."""
        self._parameters, self._updates, self._held = {}, {}, {}
        self._lead = None

    def flush(self) -> None:
        """The process ends before any optimizer came around again: what is held is a step."""
        if self._lead is None and self._held:
            self._choose_and_close_the_first()

    def _before(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._started_ns = time.perf_counter_ns()

    def _after(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        try:
            self._note(optimizer, time.perf_counter_ns())
        except Exception as error:  # noqa: BLE001 - observing never breaks a job
            self._session.fail("steps", error)

    def _note(self, optimizer: Any, now_ns: int) -> None:
        session = self._session
        session.draft.optimizer_ns += now_ns - self._started_ns
        key = id(optimizer)
        if key not in self._parameters:
            groups = optimizer.param_groups
            self._parameters[key] = sum(p.numel() for group in groups for p in group["params"])
        self._updates[key] = self._updates.get(key, 0) + 1
        if self._lead is None:
            if key not in self._held:
                self._held[key] = (now_ns, session.draft.copy())
                return
            self._choose_and_close_the_first()
        if key == self._lead:
            session.close_step(now_ns)

    def _choose_and_close_the_first(self) -> None:
        """The optimizer with the most parameters leads; among equals, the one that came last."""
        order = list(self._held)
        lead = max(order, key=lambda key: (self._parameters[key], order.index(key)))
        self._lead = lead
        ended_ns, until_then = self._held[lead]
        self._session.close_step(ended_ns, done=until_then)
        self._held = {}

    def _watching_for_skips(self, real: Callable[..., Any]) -> Callable[..., Any]:
        tap = self

        @functools.wraps(real)
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            before = tap._updates.get(id(optimizer), 0)
            result = real(scaler, optimizer, *args, **kwargs)
            if scaler.is_enabled() and tap._updates.get(id(optimizer), 0) == before:
                tap._session.draft.skipped_updates += 1
            return result

        return step
