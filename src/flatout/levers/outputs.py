"""What a model returns: tensors in whatever nesting, and the memory in which they lie."""

import importlib
from collections.abc import Callable
from typing import Any


def map_tensors(change: Callable[[Any], Any], value: Any) -> Any:
    """The same nesting with `change` applied to each tensor; containers keep their types, others stay."""
    if hasattr(value, "untyped_storage"):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(change, item) for item in value))
    if type(value) in (list, tuple):
        return type(value)(map_tensors(change, item) for item in value)
    if type(value) is dict:
        return {name: map_tensors(change, item) for name, item in value.items()}
    if isinstance(value, dict):  # an output class of transformers and its like: attributes follow its items
        for name, item in list(value.items()):
            changed = map_tensors(change, item)
            if changed is not item:
                value[name] = changed
    return value


def memory_of(tensor: Any) -> Any:
    """A tensor's memory, without keeping it."""
    reductions = importlib.import_module("torch.multiprocessing.reductions")
    return reductions.StorageWeakRef(tensor.untyped_storage())
