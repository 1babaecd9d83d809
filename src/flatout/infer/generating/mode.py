"""The state of torch in which a model is driven: the same from the first call to the last, whoever calls.

What is made in a caller's inference mode could not be written to outside of it, and what a cache holds has
the dtype in which autocast let keys come. Autocast is the caller's, as it changes which tokens a model
chooses; all else is ours.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch


@dataclasses.dataclass(frozen=True)
class Mode:
    """How products are cast on a kind of device; None: they are not."""

    device_type: str
    casts_to: torch.dtype | None

    @classmethod
    def of_caller(cls, model: Any) -> "Mode":
        """As this thread has it at the moment, on the device of the model."""
        kind = next(model.parameters()).device.type
        is_on = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
        return cls(kind, torch.get_autocast_dtype(kind) if is_on else None)

    def precision(self, model: Any) -> torch.dtype:
        """What its products are computed in."""
        own: torch.dtype = next(model.parameters()).dtype
        return self.casts_to if self.casts_to is not None and own == torch.float32 else own

    @contextlib.contextmanager
    def driving(self) -> Iterator[None]:
        """Meanwhile, torch is in this state."""
        # In this order: to leave inference mode turns gradients on.
        with torch.inference_mode(mode=False), torch.no_grad(), self._casting():
            yield

    def _casting(self) -> contextlib.AbstractContextManager[Any]:
        kind = self.device_type
        if self.casts_to is not None:
            # A graph would go on to read the caller's cast weights when they are long gone.
            cached = kind != "cuda" and torch.is_autocast_cache_enabled()
            return torch.autocast(kind, dtype=self.casts_to, cache_enabled=cached)
        if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
            return torch.autocast(kind, enabled=False)
        return contextlib.nullcontext()
