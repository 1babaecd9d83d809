"""Dynamic loss scaling, for a script that knows nothing of it.

Each backward pass starts from a larger gradient, so that small ones survive fp16. Each parameter gets its own
back in its true size before anybody adds it up: accumulating, clipping and logging see what they always see.
A pass in which something overflows leaves zeros, and the update after it is skipped.
"""

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

from flatout.levers.autograd_engine import ENGINE

# torch's own begins at 2 ** 16, and as a rule loses the first updates to that.
_FIRST_SCALE = 2.0**13
_UPDATES_UNTIL_MORE = 2000
# Passes whose graph is looked through for tensors that would keep a gradient of the wrong size.
_LOOKED_THROUGH = 8


class LossScaling:
    """Scales passes and skips updates between `start` and `stop`; the scale is kept from one to the next."""

    def __init__(self, torch: Any, leaves: Callable[[], Iterable[Any]]) -> None:
        self._torch = torch
        # Whatever gets a gradient: asked anew for each pass, since layers are frozen and thawed on the way.
        self._leaves = leaves
        self.scale = _FIRST_SCALE
        self.skipped = 0
        # Why it cannot go on: found in a pass, which then ran unscaled.
        self.problem = ""
        self._on = False
        self._real: Any = None
        self._ours: Any = None
        self._hooks: dict[int, tuple[Any, Any]] = {}
        self._handles: list[Any] = []
        self._hidden: list[tuple[Any, Any]] = []
        # The scale of the pass that runs.
        self._under_way = 0.0
        self._overflowed = False
        self._good_updates = 0
        self._passes = 0

    def start(self, optimizers: Iterable[Any]) -> None:
        """Stand around backward passes and updates."""
        autograd = self._torch.autograd
        self._on, self._overflowed, self._passes = True, False, 0
        self._real = getattr(autograd, ENGINE)
        self._ours = self._scaling(self._real)
        setattr(autograd, ENGINE, self._ours)
        for optimizer in optimizers:
            self.watch(optimizer)

    def watch(self, optimizer: Any) -> None:
        """Skip this optimizer's updates too, where a gradient overflowed."""
        self._handles += [
            optimizer.register_step_pre_hook(self._before_update),
            optimizer.register_step_post_hook(self._after_update),
        ]

    def stop(self) -> None:
        """Leave everything as it was found."""
        self._on = False
        autograd = self._torch.autograd
        if getattr(autograd, ENGINE) is self._ours:  # else somebody stands around ours, which only passes on
            setattr(autograd, ENGINE, self._real)
        for _, handle in self._hooks.values():
            handle.remove()
        for handle in self._handles:
            handle.remove()
        self._hooks, self._handles = {}, []

    # Passes

    def _scaling(self, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def backward(tensors: Any, gradients: Any, *args: Any, **kwargs: Any) -> Any:
            # Not `autograd.grad`, nor a pass within a pass: checkpointing starts from what is scaled already.
            if not self._on or self._under_way or not kwargs.get("accumulate_grad", False):
                return real(tensors, gradients, *args, **kwargs)
            if not self._is_ready(tensors):
                return real(tensors, gradients, *args, **kwargs)
            self._under_way = self.scale
            try:
                scaled = tuple(None if one is None else one * self.scale for one in gradients)
                result = real(tensors, scaled, *args, **kwargs)
            finally:
                self._under_way = 0.0
            self._look_for_overflow()
            return result

        return backward

    def _is_ready(self, tensors: Any) -> bool:
        """Whether all that gets a gradient will have it in its true size."""
        for leaf in self._leaves():
            if leaf.requires_grad and id(leaf) not in self._hooks:
                self._hooks[id(leaf)] = (leaf, leaf.register_hook(self._in_true_size))
        self._passes += 1
        if self._passes <= _LOOKED_THROUGH and not self.problem and self._reaches_others(tensors):
            self.problem = "the loss reaches a tensor with a gradient that no optimizer and no model holds"
        return not self.problem

    def _in_true_size(self, gradient: Any) -> Any:
        # A power of two: exact. Never in place: two leaves may share one gradient.
        return gradient * (1.0 / self._under_way) if self._under_way else None

    def _reaches_others(self, tensors: Any) -> bool:
        seen: set[Any] = set()
        ahead = [getattr(tensor, "grad_fn", None) for tensor in tensors]
        while ahead:
            node = ahead.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            leaf = getattr(node, "variable", None)
            if leaf is not None and id(leaf) not in self._hooks:
                return True
            ahead += [following for following, _ in node.next_functions]
        return False

    def _look_for_overflow(self) -> None:
        torch = self._torch
        with torch.no_grad():
            found = [leaf.grad for leaf, _ in self._hooks.values() if leaf.grad is not None]
            dense = [one.coalesce().values() if one.is_sparse else one for one in found]
            if not dense or bool(torch.nn.utils.get_total_norm(dense, math.inf).isfinite()):
                return
            # Zeros rather than infinities: a script that clips may insist on a finite norm.
            for gradient in found:
                gradient.zero_()
        self._overflowed = True

    # Updates

    def _before_update(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """Hide the gradients: every optimizer leaves parameters without one alone, and their state too."""
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._hide_overflow(optimizer)
            return None

        @functools.wraps(closure)
        def watched(*given: Any, **named: Any) -> Any:
            loss = closure(*given, **named)
            self._hide_overflow(optimizer)
            return loss

        if "closure" in kwargs:
            return args, {**kwargs, "closure": watched}
        return (args[0], watched, *args[2:]), kwargs

    def _hide_overflow(self, optimizer: Any) -> None:
        if self._overflowed:
            parameters = [one for group in optimizer.param_groups for one in group["params"]]
            self._hidden = [(one, one.grad) for one in parameters if one.grad is not None]
            for parameter, _ in self._hidden:
                parameter.grad = None

    def _after_update(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        for parameter, gradient in self._hidden:
            parameter.grad = gradient
        self._hidden = []
        if self._overflowed:
            self._overflowed, self._good_updates = False, 0
            self.skipped += 1
            self.scale /= 2
            if self.scale < 1.0:
                self.problem = "gradients overflow in fp16 at any scale"
            return
        self._good_updates += 1
        if self._good_updates == _UPDATES_UNTIL_MORE:
            self._good_updates = 0
            self.scale *= 2
