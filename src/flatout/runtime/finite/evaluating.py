"""Optimizers that compute gradients themselves, by a closure, in the middle of their update."""

from collections.abc import Callable
from typing import Any

from flatout.runtime.finite.agreement import agree
from flatout.runtime.finite.gradients import Look, parameters_of
from flatout.runtime.finite.ledger import Answer
from flatout.runtime.finite.skipping import Copied, Hidden, moves_between_evaluations


class Evaluated:
    """A closure whose gradients are looked at each time; where one is bad, the whole update is left out.

    The first evaluation comes before anything is changed: gradients that are bad are hidden, and nothing
    happens. Bad ones of a later evaluation can be taken back only where copies were made (LBFGS); another
    optimizer gets them as they are, which is counted.
    """

    def __init__(
        self, torch: Any, optimizer: Any, closure: Callable[..., Any], look: Callable[[list[Any]], Look]
    ) -> None:
        self._look_at = look
        self._torch = torch
        self._optimizer = optimizer
        self._closure = closure
        self._copied = Copied(torch, optimizer) if moves_between_evaluations(torch, optimizer) else None
        self._hidden: Hidden | None = None
        self._evaluations = 0
        self._loss: Any = None
        self._last_good: Any = None
        self._flag: Any = None
        self._found: Look | None = None
        self.let_through = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate, and look."""
        loss = self._closure(*args, **kwargs)
        if not self._is_bad():
            self._look(loss)
        if not self._is_bad() or self.let_through:
            self._last_good = loss
            return loss
        self._hide()
        # A line search would stumble over a loss that is not a number; this one leads it to its end.
        return loss if self._last_good is None else self._last_good

    def _look(self, loss: Any) -> None:
        torch, optimizer = self._torch, self._optimizer
        self._evaluations += 1
        self._found = self._look_at(parameters_of(optimizer))
        self._flag = agree(torch, self._found.flag)
        self._loss = None if loss is None else torch.as_tensor(loss).detach()
        self.let_through = self._is_bad() and self._evaluations > 1 and self._copied is None

    def _is_bad(self) -> bool:
        return self._flag is not None and bool(self._flag)

    def answer(self) -> Answer:
        """For the ledger; an optimizer that never evaluated has changed nothing."""
        return Answer(self._torch, self.flag, self._loss, None, self._found)

    @property
    def flag(self) -> Any:
        """Whether anything was not finite, on any rank."""
        return self._torch.zeros((), device="cpu") if self._flag is None else self._flag

    def end(self) -> None:
        """After the update: as before it, where it was bad."""
        if self._copied is not None and self._is_bad():
            self._copied.put_back()
        if self._hidden is not None:
            self._hidden.end()
            self._hidden = None

    def _hide(self) -> None:
        if self._hidden is not None:
            self._hidden.end()
        self._hidden = Hidden(self._optimizer)
