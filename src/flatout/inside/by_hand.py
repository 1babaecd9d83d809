"""Updates that a script makes by hand, without an optimizer: `p.data.add_(p.grad, alpha=-lr)`.

They are over, at the latest, where the script zeroes the gradients of its model for the next step. They are
told through an optimizer of ours, which holds the model's parameters and does nothing: whoever hears of
updates hears of these. A script that makes an optimizer of its own has no such updates.
"""

import functools
import weakref
from typing import TYPE_CHECKING, Any

from flatout.inside.tap import Patch, undo_all, unseen
from flatout.levers.accumulation import marks_of, sample_of
from flatout.records.session import BY_HAND

if TYPE_CHECKING:
    from collections.abc import Callable

    from flatout.inside.session import Session


def is_by_hand(optimizer: Any) -> bool:
    """Whether this only stands for what the script does itself."""
    return type(optimizer).__qualname__ == BY_HAND


class ByHand:
    """Watches `Module.zero_grad`, until the script makes an optimizer."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._patches: list[Patch] = []
        self._optimizers: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        # By module: what its gradients were when they were last zeroed.
        self._had: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._makes_one = False

    def install(self) -> None:
        """Patch the method of all modules."""
        module = self._session.torch.nn.Module
        self._patches = [Patch(module, "zero_grad", self._watched(module.zero_grad))]

    def remove(self) -> None:
        """Put it back."""
        undo_all(self._patches)
        self._patches = []

    def optimizer_made(self, optimizer: Any) -> None:
        """The script's own updates come from here on, unless it is one of ours."""
        if not self._makes_one and not is_by_hand(optimizer):
            self.remove()

    def _watched(self, real: "Callable[..., None]") -> "Callable[..., None]":
        tap = self

        @functools.wraps(real)
        def zero_grad(module: Any, *args: Any, **kwargs: Any) -> None:
            tap._session.guarded(BY_HAND, tap._look, module)
            real(module, *args, **kwargs)
            tap._session.guarded(BY_HAND, tap._zeroed, module)

        return unseen(zero_grad)

    def _zeroed(self, module: Any) -> None:
        self._had[module] = marks_of(sample_of(module))

    def _look(self, module: Any) -> None:
        """Whether gradients came since they were zeroed the last time: then they were used for an update."""
        marks = marks_of(sample_of(module))
        if not any(marks) or marks == self._had.get(module):
            return
        if module not in self._optimizers:
            self._optimizers[module] = self._made(module)
        self._optimizers[module].step()

    def _made(self, module: Any) -> Any:
        optimizer = self._session.torch.optim.Optimizer
        kind = type(BY_HAND, (optimizer,), {"step": lambda _self, _closure=None: None})
        self._makes_one = True
        try:
            return kind([one for one in module.parameters() if one.requires_grad], {})
        finally:
            self._makes_one = False
