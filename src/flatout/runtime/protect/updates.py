"""Every update of a training, counted: the same places in the loop in every life of a script.

An update is a call of an optimizer's `step`, or of a GradScaler's, also one that the scaler skips. Where such
a call ends is a place that the script comes to again when it is run again.
"""

import functools
import importlib
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

from flatout.inside.tap import Patch, undo_all, unseen


class Updates:
    """Counts updates, and can make them void."""

    def __init__(self, torch: Any, ended: Callable[[], None]) -> None:
        self._torch = torch
        self._ended = ended
        self._thread = threading.get_ident()
        self._patches: list[Patch] = []
        self._gated: set[Any] = set()
        self._under_way = False
        self._in_backward = False
        self._made: list[weakref.ref[Any]] = []
        # Stands for a step instead of it, while the loop is run again.
        self.void: Callable[[Any, Callable[[], Any] | None], Any] | None = None
        # An optimizer that steps inside of a pass backward is out of anybody's hands.
        self.in_backward = False
        # The optimizer of the last update.
        self.stepped: Any = None
        os.register_at_fork(after_in_child=self.stop)

    def install(self) -> None:
        """Begin to count."""
        torch = self._torch
        base = importlib.import_module("torch.optim.optimizer").Optimizer
        scaler, autograd = torch.amp.GradScaler, torch.autograd
        self._patches = [
            Patch(base, "__init__", self._watching_for_new_ones(base.__init__)),
            Patch(scaler, "step", self._gate(scaler.step, of_scaler=True)),
            Patch(autograd, "backward", self._backward(autograd.backward)),
        ]

    def optimizers(self) -> list[Any]:
        """Those that still live, in the order in which they were made."""
        return [one for made in self._made if (one := made()) is not None]

    def stop(self) -> None:
        """No longer."""
        undo_all(self._patches)

    def _watching_for_new_ones(self, real: Callable[..., None]) -> Callable[..., None]:
        updates = self

        @functools.wraps(real)
        def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            real(optimizer, *args, **kwargs)
            updates._made.append(weakref.ref(optimizer))
            for kind in type(optimizer).__mro__:
                if "step" in vars(kind):
                    if kind not in updates._gated:
                        updates._gated.add(kind)
                        updates._patches.append(Patch(kind, "step", updates._gate(vars(kind)["step"])))
                    return

        return unseen(__init__)

    def _gate(self, real: Callable[..., Any], *, of_scaler: bool = False) -> Callable[..., Any]:
        updates = self

        @functools.wraps(real)
        def step(owner: Any, *args: Any, **kwargs: Any) -> Any:
            if updates._in_backward:
                updates.in_backward = True
            if updates._under_way or threading.get_ident() != updates._thread:
                return real(owner, *args, **kwargs)
            updates._under_way = True
            stepped, closure = _what_steps(owner, args, kwargs, of_scaler=of_scaler)
            try:
                if updates.void is None:
                    result = real(owner, *args, **kwargs)
                else:
                    result = updates.void(stepped, closure)
            finally:
                updates._under_way = False
            updates.stepped = stepped
            updates._ended()
            return result

        return unseen(step)

    def _backward(self, real: Callable[..., Any]) -> Callable[..., Any]:
        updates = self

        @functools.wraps(real)
        def backward(*args: Any, **kwargs: Any) -> Any:
            updates._in_backward = True
            try:
                return real(*args, **kwargs)
            finally:
                updates._in_backward = False

        return unseen(backward)


def _what_steps(
    owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, of_scaler: bool
) -> tuple[Any, Callable[[], Any] | None]:
    """The optimizer, and the closure that its step would call."""
    if of_scaler and not args:
        args = (kwargs.get("optimizer"),)
    optimizer, rest = (args[0], args[1:]) if of_scaler else (owner, args)
    closure = rest[0] if rest else kwargs.get("closure")
    return optimizer, closure if callable(closure) else None
