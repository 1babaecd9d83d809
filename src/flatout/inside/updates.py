"""Hears of every update, for levers: also of one that a scaler leaves out, since it overflowed.

Levers come on and go while torch runs its hooks on updates, and torch does not bear that these change
meanwhile. So there is one hook for all levers, which stays.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any


class Updates:
    """Calls `heard` with the optimizer after each update, until it is ended: not from within an update."""

    def __init__(self, torch: Any, heard: Callable[[Any], None]) -> None:
        optimizers: Any = importlib.import_module("torch.optim.optimizer")
        self._hook = optimizers.register_optimizer_step_post_hook(lambda optimizer, *_: heard(optimizer))
        self._scaler = torch.amp.GradScaler
        self._real = real = self._scaler.step

        @functools.wraps(real)
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return real(scaler, optimizer, *args, **kwargs)
            finally:
                heard(optimizer)

        self._scaler.step = self._ours = step

    def end(self) -> None:
        """Put the scaler's step back, unless somebody else stands before it by now."""
        self._hook.remove()
        if self._scaler.step is self._ours:
            self._scaler.step = self._real
