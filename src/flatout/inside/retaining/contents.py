"""Which tensors an object holds, itself or through what it holds."""

import gc
import time
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

_NOT_INTO = (type, ModuleType, FunctionType, MethodType, BuiltinFunctionType, CodeType, FrameType)
_OBJECTS = 500_000
_LOOK_AT_THE_CLOCK = 1000


def tensors_in(value: Any, torch: Any, deadline: float) -> list[Any]:
    """All that can be reached without going through a module, a class or a function."""
    tensor, modules = torch.Tensor, (torch.nn.Module, torch.optim.Optimizer)
    if issubclass(type(value), tensor):
        return [value]
    found, to_come, seen = [], [value], {id(value)}
    while to_come and len(seen) < _OBJECTS:
        if not len(seen) % _LOOK_AT_THE_CLOCK and time.monotonic() > deadline:
            break
        for one in gc.get_referents(to_come.pop()):
            kind = type(one)
            if id(one) in seen or not gc.is_tracked(one):
                continue
            seen.add(id(one))
            if issubclass(kind, tensor):
                found.append(one)
            elif not issubclass(kind, (*_NOT_INTO, *modules)):
                to_come.append(one)
    return found
