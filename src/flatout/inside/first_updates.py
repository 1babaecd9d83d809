"""What the first updates make known: the models that train, their device, what the job holds."""

import sys
from typing import TYPE_CHECKING, Any

from flatout.inside.forward import ForwardTap
from flatout.inside.memory import held_by
from flatout.inside.planned import updates_planned
from flatout.inside.steps import StepsTap

if TYPE_CHECKING:
    from flatout.inside.session import Session

# By now optimizers have their state and gradients exist: what the job holds can be told apart.
LEARN_AT = 2


class FirstUpdates:
    """Looks around while the job's loop is still on the stack, and writes down what will not change."""

    def __init__(self, session: "Session") -> None:
        self._session = session

    def settle(self) -> None:
        """After an update of the first ones, or after the first of another phase."""
        folder = self._session.folder()
        if (
            self._session.order.heartbeat
            and (self._session.heart is None or self._session.heart.folder != folder)
            and "heartbeat" not in self._session.failed
        ):
            self._session.begin_heart(folder)
        leading = self._leading_parameters()
        if self._session.updates == 1 and leading:
            self._session.gpu.find(leading[0].device)
        forward = self._session.tap("forward", ForwardTap)
        if forward is not None:
            self._session.guarded("forward", forward.settle, {id(parameter) for parameter in leading})
        if self._session.updates == LEARN_AT:
            self._session.guarded("memory", self._learn)
            self._session.guarded("habits", self.learn_habits)
            self._session.guarded("planned", self._learn_plan)

    def _leading_parameters(self) -> list[Any]:
        """Of the optimizer that leads; where nothing trains, of every model that is called."""
        if self._session.calls is not None:
            return [parameter for root in self._session.roots() for parameter in root.parameters()]
        steps = self._session.tap("steps", StepsTap)
        lead = steps.lead() if steps is not None else None
        return [one for group in lead.param_groups for one in group["params"]] if lead is not None else []

    def _learn(self) -> None:
        steps = self._session.tap("steps", StepsTap)
        if steps is not None:
            self._session.facts["holds"] = held_by(
                steps.optimizers(), self._session.torch, self._session.roots()
            )
            self._session.facts["optimizers"] = [
                type(optimizer).__qualname__ for optimizer in steps.optimizers()
            ]
        self._session.facts["roots"] = [type(root).__qualname__ for root in self._session.roots()]

    def _learn_plan(self) -> None:
        planned = updates_planned(sys._getframe(1))  # noqa: SLF001
        if planned is not None:
            self._session.facts["updates_planned"] = planned

    def learn_habits(self) -> None:
        """What kinds of layers, optimizers and shapes the job has; more may have come since."""
        steps = self._session.tap("steps", StepsTap)
        if self._session.habits is not None and steps is not None:
            before = self._session.facts.get("habits", {})
            self._session.facts["habits"] = found = self._session.habits.describe(
                self._session.roots(), steps.optimizers()
            )
            if not found["optimizers"] and before:  # at the end of a script they may be gone
                found["optimizers"] = before["optimizers"]
