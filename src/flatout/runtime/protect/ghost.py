"""A loop that is run again without its work: models, passes backward and updates are void.

A model called with what it was called with before (shapes, types, mode) gives the output that it gave then.
Metrics count how often they were called, and are called.
"""

import functools
import importlib
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flatout.inside.tap import Patch, undo_all, unseen
from flatout.runtime.finite.gradients import parameters_of

# Outputs that are kept to be given again.
_MOST = 256
_MOST_BYTES = 2 << 30


class Ghost:
    """Makes a training loop cost next to nothing, until it is told to be real."""

    def __init__(self, torch: Any, optimizers: Callable[[], list[Any]]) -> None:
        self._torch = torch
        self._tree = importlib.import_module("torch.utils._pytree")
        self._optimizers = optimizers
        self._thread = threading.get_ident()
        self._inside = False
        self._outputs: dict[Any, Any] = {}
        self._bytes = 0
        self._gradients: dict[Any, Any] = {}
        self._patches: list[Patch] = []
        # Whoever patched the same after us puts ours back one day: by then it must be harmless.
        self._is_over = False
        package = Path(torch.__file__).parent
        self._compiler = tuple(f"{package / name}{os.sep}" for name in ("_functorch", "_dynamo", "_inductor"))
        # Called before the first thing that is void.
        self.on_first: Callable[[], None] | None = None

    def install(self) -> None:
        """From now on."""
        torch = self._torch
        module, autograd, scaler = torch.nn.Module, torch.autograd, torch.amp.GradScaler
        self._patches = [
            Patch(module, "__call__", self._call(module.__call__)),
            Patch(autograd, "backward", self._backward(autograd.backward)),
            Patch(autograd, "grad", self._grad(autograd.grad)),
            Patch(scaler, "unscale_", self._nothing(scaler.unscale_)),
            Patch(scaler, "update", self._nothing(scaler.update)),
        ]

    def end(self) -> None:
        """Everything is real again."""
        self._is_over = True
        undo_all(self._patches)
        self._outputs.clear()
        self._gradients.clear()

    def step(self, optimizer: Any, closure: Callable[[], Any] | None) -> Any:
        """Instead of an update: only what the script does in it."""
        result = None
        if closure is not None:
            with self._torch.enable_grad():
                result = closure()
        optimizer._opt_called = True  # noqa: SLF001 - schedulers warn of updates that were never made
        return result

    def _call(self, real: Callable[..., Any]) -> Callable[..., Any]:
        ghost = self

        @functools.wraps(real)
        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            if ghost._is_over or ghost._inside or threading.get_ident() != ghost._thread:
                return real(module, *args, **kwargs)
            if _is_a_metric(module):
                return real(module, *args, **kwargs)
            step = _redirected(module)
            if step is not None:
                return step(*args, **kwargs)
            if ghost.on_first is not None:
                ghost.on_first()
                ghost.on_first = None
            key = ghost._key(module, args, kwargs)
            if key in ghost._outputs:
                return ghost._again(ghost._outputs[key])
            ghost._inside = True
            try:
                # Ranks that have seen different shapes would call each other in vain.
                is_spread = type(module).__name__ == "DistributedDataParallel"
                output = real(module.module if is_spread else module, *args, **kwargs)
            finally:
                ghost._inside = False
            ghost._keep(key, output)
            return output

        return unseen(__call__)

    def _key(self, module: Any, args: Any, kwargs: Any) -> Any:
        leaves, shape = self._tree.tree_flatten((args, kwargs))
        return (
            id(module),
            module.training,
            self._torch.is_grad_enabled(),
            str(shape),
            tuple(self._kind(leaf) for leaf in leaves),
        )

    def _kind(self, leaf: Any) -> Any:
        if isinstance(leaf, self._torch.Tensor):
            return tuple(leaf.shape), leaf.dtype, leaf.device.type
        if leaf is None or isinstance(leaf, bool | int | float | str):
            return leaf
        return type(leaf)

    def _keep(self, key: Any, output: Any) -> None:
        tensor = self._torch.Tensor
        leaves, shape = self._tree.tree_flatten(output)
        if not all(one is None or isinstance(one, tensor | bool | int | float | str) for one in leaves):
            return
        size = sum(one.numel() * one.element_size() for one in leaves if isinstance(one, tensor))
        if len(self._outputs) >= _MOST or self._bytes + size > _MOST_BYTES:
            return
        self._bytes += size
        kept = [
            (one.detach().clone().requires_grad_(one.requires_grad)) if isinstance(one, tensor) else one
            for one in leaves
        ]
        self._outputs[key] = (kept, shape)

    def _again(self, kept: tuple[list[Any], Any]) -> Any:
        """Not the kept tensors themselves: the script may write into what it is given."""
        leaves, shape = kept
        tensor = self._torch.Tensor
        fresh = [one.clone() if isinstance(one, tensor) else one for one in leaves]
        return self._tree.tree_unflatten(fresh, shape)

    def _backward(self, real: Callable[..., Any]) -> Callable[..., Any]:
        ghost = self

        @functools.wraps(real)
        def backward(*args: Any, **kwargs: Any) -> Any:
            """Gradients are there, as scripts expect, and are nothing."""
            if ghost._is_over or ghost._is_traced():
                return real(*args, **kwargs)
            zeros, kept = ghost._torch.zeros_like, ghost._gradients
            for optimizer in ghost._optimizers():
                for parameter in parameters_of(optimizer):
                    if parameter.grad is None and parameter.requires_grad:
                        if parameter not in kept:
                            kept[parameter] = zeros(parameter)
                        parameter.grad = kept[parameter]
            return None

        return unseen(backward)

    def _grad(self, real: Callable[..., Any]) -> Callable[..., Any]:
        ghost = self

        @functools.wraps(real)
        def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if ghost._is_over or ghost._inside or ghost._is_traced():
                return real(outputs, inputs, *args, **kwargs)
            inputs = (inputs,) if isinstance(inputs, ghost._torch.Tensor) else tuple(inputs)
            return tuple(ghost._torch.zeros_like(one, requires_grad=True) for one in inputs)

        return unseen(grad)

    def _is_traced(self) -> bool:
        """Whether the compiler asks, to see what a pass backward is made of: its code, for good."""
        if self._torch._guards.TracingContext.try_get() is not None:  # noqa: SLF001
            return True
        return sys._getframe(2).f_code.co_filename.startswith(self._compiler)  # noqa: SLF001

    def _nothing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        ghost = self

        @functools.wraps(real)
        def nothing(*args: Any, **kwargs: Any) -> Any:
            return real(*args, **kwargs) if ghost._is_over else None

        return unseen(nothing)


# What Lightning puts into the place of a model's `forward`, so that DistributedDataParallel calls its step.
REDIRECTION = "wrapped_forward"


def _redirected(module: Any) -> Callable[..., Any] | None:
    """The script's own step, which a wrapper is about to call in place of its model; it is run, not void."""
    inner = module._modules.get("module")  # noqa: SLF001
    forward = vars(inner).get("forward") if inner is not None else None
    return forward if getattr(forward, "__name__", "") == REDIRECTION else None


def _is_a_metric(module: Any) -> bool:
    """Such as those of torchmetrics, of which Lightning's `self.log` makes some; without a model in it."""
    kind = type(module)
    if not all(callable(getattr(kind, name, None)) for name in ("update", "compute", "reset")):
        return False
    return next(module.parameters(), None) is None
