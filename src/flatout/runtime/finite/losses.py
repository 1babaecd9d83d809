"""The loss that a script's updates come from, as it was before anybody scaled it."""

import functools
from collections.abc import Callable
from typing import Any

from flatout.inside.tap import Patch, unseen
from flatout.levers.autograd_engine import ENGINE


class LastLoss:
    """Keeps what backward passes began with since the last update; several are added up."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._loss: Any = None
        self.in_backward = False
        # What was scaled last, and what of.
        self._scaled: tuple[Any, Any] = (None, None)

    def patches(self) -> list[Patch]:
        """A look at the engine, and at what scalers scale."""
        autograd, scaler = self._torch.autograd, self._torch.amp.GradScaler
        return [
            Patch(autograd, ENGINE, self._seeing(getattr(autograd, ENGINE))),
            Patch(scaler, "scale", self._seeing_scaled(scaler.scale)),
        ]

    def value(self) -> Any:
        """On its device; None where there was no single number."""
        return self._loss

    def forget(self) -> None:
        """An update was made."""
        self._loss = None

    def _seeing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        seen = self

        @functools.wraps(real)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if seen.in_backward or not kwargs.get("accumulate_grad", False):
                return real(*args, **kwargs)
            seen._began_with(args[0] if args else None)
            seen.in_backward = True
            try:
                return real(*args, **kwargs)
            finally:
                seen.in_backward = False

        return unseen(backward)

    def _seeing_scaled(self, real: Callable[..., Any]) -> Callable[..., Any]:
        seen = self

        @functools.wraps(real)
        def scale(scaler: Any, outputs: Any) -> Any:
            result = real(scaler, outputs)
            if isinstance(outputs, seen._torch.Tensor):
                seen._scaled = (id(result), outputs.detach())
            return result

        return unseen(scale)

    def _began_with(self, roots: Any) -> None:
        root = roots[0] if isinstance(roots, list | tuple) and len(roots) == 1 else roots
        if not isinstance(root, self._torch.Tensor) or root.numel() != 1:
            return
        key, outputs = self._scaled
        loss = outputs if key == id(root) and outputs is not None else root.detach()
        loss = loss.reshape(())
        self._loss = loss if self._loss is None else self._loss + loss.to(self._loss.device)
        self._scaled = (None, None)
