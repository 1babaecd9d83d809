"""All that an answer holds, as numbers that can be compared: also in objects of the module's own making."""

import dataclasses
import enum
import types
from collections.abc import Mapping
from typing import Any

import torch

_SAYS_NOTHING = (type(None), enum.Enum, torch.dtype, torch.device, type, types.FunctionType, types.MethodType)
_DEEPEST = 8


class Unseen(Exception):
    """An object of this kind holds nobody knows what."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"an output holds a {kind}, which nobody can look into")


def numbers_in(value: Any) -> list[torch.Tensor]:
    """Every tensor and number in an answer, in order; raises Unseen where something cannot be looked into."""
    return _numbers(value, set(), 0)


def _numbers(value: Any, above: set[int], depth: int) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, bool | int | float | complex):
        kinds = {float: torch.float64, complex: torch.complex128}
        return [torch.tensor(value, dtype=kinds.get(type(value)), device="cpu")]
    if isinstance(value, str | bytes):
        text = value.encode(errors="replace") if isinstance(value, str) else value
        return [torch.tensor(list(text), dtype=torch.uint8, device="cpu")]
    if isinstance(value, _SAYS_NOTHING) or id(value) in above:
        return []
    if depth > _DEEPEST:
        raise Unseen(type(value).__name__)
    inside = [_numbers(one, above | {id(value)}, depth + 1) for one in _held(value)]
    return [one for some in inside for one in some]


def _held(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, Mapping):
        return list(value.values())
    if dataclasses.is_dataclass(value):
        return [getattr(value, one.name, None) for one in dataclasses.fields(value)]
    if hasattr(value, "__array__") and hasattr(value, "dtype") and value.dtype.kind in "biufc":
        return [torch.as_tensor(value)]
    own = getattr(value, "__dict__", None)
    if not own or isinstance(value, torch.nn.Module):
        raise Unseen(type(value).__name__)
    return [own[name] for name in sorted(own, key=str)]
