"""Tensors in what a model is called with, and in what it answers: tuples, lists and dicts of any kind."""

import copy
from collections.abc import Callable
from typing import Any


def changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same with other tensors: whatever holds them stays of its kind, for scripts ask `output.loss`."""
    import torch

    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        made = copy.copy(value)
        for key, one in value.items():
            made[key] = changed(one, change)
        return made
    if isinstance(value, tuple | list):
        parts = [changed(one, change) for one in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def to(value: Any, device: Any) -> Any:
    """Tensors in it on a device."""
    return changed(value, lambda one: one.to(device))


def tensors_in(value: Any) -> list[Any]:
    """All of them, in order."""
    found: list[Any] = []

    def note(tensor: Any) -> Any:
        found.append(tensor)
        return tensor

    changed(value, note)
    return found
