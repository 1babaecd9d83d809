"""Gradients cut down to a norm, after they were unscaled: with the norms that were taken anyway."""

from typing import Any

from flatout.records.errors import CallerMistake
from flatout.runtime.finite.gradients import Look, total_norm


class Clipping:
    """Clips by the norm of all gradients together."""

    def __init__(self, torch: Any, model: Any, most: float) -> None:
        if not most > 0:
            raise CallerMistake(f"clip_norm={most}", expected="a number above 0", remedy="clip_norm=1.0")
        self._torch = torch
        self._model = model
        self._most = most
        self.last_norm: Any = None

    def clip(self, found: Look, parameters: list[Any]) -> None:
        """Cut them down. Where they are not finite, so they are afterwards: that update is skipped."""
        torch = self._torch
        # Not those of the look alone: of a shard that is empty here, other ranks have more.
        parameters = [one for one in parameters if one.grad is not None]
        if not parameters:
            return
        own = getattr(self._model, "clip_grad_norm_", None)
        if callable(own):  # a fully sharded model of the older kind, which alone knows its shards
            self.last_norm = own(self._most)
            return
        gradients = [one.grad for one in parameters]
        if any(hasattr(one, "full_tensor") for one in gradients):
            norm = torch.nn.utils.get_total_norm(gradients)
            self.last_norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        else:
            self.last_norm = total_norm(torch, found)
        torch.nn.utils.clip_grads_with_norm_(parameters, self._most, self.last_norm)
