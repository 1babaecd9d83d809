"""What a backward pass finds in place of the last step's gradients: them, zeros, or nothing."""

import functools
import importlib
from typing import Any

from flatout.inside.tap import Patch, undo_all, unseen
from flatout.levers.autograd_engine import ENGINE
from flatout.records.memory_growth import Gradients

# Updates are looked at from here on, and so many: to look is to wait for the device.
_FROM, _OFTEN = 2, 2
_AT_MOST = 8


class GradientsLeft:
    """Looks where the first backward passes after some updates begin."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        # By update.
        self._found: dict[int, Gradients] = {}

    @property
    def is_known(self) -> bool:
        """Whether there is no more to look at."""
        return len(self._found) >= _OFTEN

    def backward_begins(self, updates: int, optimizers: list[Any]) -> None:
        """After so many updates; of several optimizers each leaves the others' gradients alone."""
        if updates < _FROM or updates in self._found or self.is_known or len(optimizers) != 1:
            return
        torch = self._torch
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return
        parameters = (parameter for group in optimizers[0].param_groups for parameter in group["params"])
        left = [parameter.grad for parameter in parameters if parameter.grad is not None]
        left = [gradient for gradient in left if gradient.layout is torch.strided]
        kept = any(bool(gradient.count_nonzero()) for gradient in left[:_AT_MOST])
        self._found[updates] = "kept" if kept else "zeroed" if left else "none"

    def found(self) -> Gradients | None:
        """The same each time, or nothing."""
        found = set(self._found.values())
        return found.pop() if len(found) == 1 else None


class GradientWatch:
    """The same, for code that no session watches: sees updates and backward passes for itself."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._left = GradientsLeft(torch)
        self._updates = 0
        self._optimizers: dict[int, Any] = {}
        self._handle: Any = None
        self._patches: list[Patch] = []
        self.reason = "no optimizer made an update and a backward pass after it"

    def install(self) -> None:
        """See every optimizer's updates, and where backward passes begin."""
        hooks = importlib.import_module("torch.optim.optimizer")
        self._handle = hooks.register_optimizer_step_post_hook(self._updated)
        autograd = self._torch.autograd
        self._patches = [Patch(autograd, ENGINE, self._watched(getattr(autograd, ENGINE)))]

    @property
    def is_over(self) -> bool:
        """Whether it can be removed."""
        return self._handle is not None and (self._left.is_known or len(self._optimizers) > 1)

    def remove(self) -> None:
        """Put everything back; what was found stays."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        undo_all(self._patches)
        if len(self._optimizers) > 1:
            self.reason = "several optimizers train: each leaves the others' gradients alone"
        self._optimizers = dict.fromkeys(self._optimizers)  # and keeps nobody alive

    def found(self) -> Gradients | None:
        """As above; nothing where several optimizers train."""
        return self._left.found() if len(self._optimizers) <= 1 else None

    def _updated(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._updates += 1
        self._optimizers[id(optimizer)] = optimizer

    def _watched(self, real: Any) -> Any:
        watch = self

        @functools.wraps(real)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("accumulate_grad", False):
                watch.backward_begins()
            return real(*args, **kwargs)

        return unseen(backward)

    def backward_begins(self) -> None:
        """Whatever goes wrong here is no matter of the script's."""
        try:
            self._left.backward_begins(self._updates, list(self._optimizers.values()))
        except Exception as error:  # noqa: BLE001 - observing never breaks a job
            self.reason = f"{type(error).__name__}: {error}"
