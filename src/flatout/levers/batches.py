"""What a loader yields: tensors in whatever nesting, each with a path to it."""

import copy
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

_DEEPEST = 6


def leaves(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Every tensor with its path: `0`, `input_ids`, `1.image`; empty where the batch is one tensor."""
    if hasattr(value, "untyped_storage"):
        yield path, value
    elif depth < _DEEPEST:
        for name, item in _items(value):
            yield from leaves(item, _joined(path, name), depth + 1)


def map_leaves(change: Callable[[str, Any], Any], value: Any, path: str = "", depth: int = 0) -> Any:
    """The same nesting with `change(path, tensor)` in place of each tensor.

    Containers keep their types and are never changed themselves: a data set may yield the same one twice.
    """
    if hasattr(value, "untyped_storage"):
        return change(path, value)
    items = list(_items(value)) if depth < _DEEPEST else []
    changed = [(name, map_leaves(change, item, _joined(path, name), depth + 1)) for name, item in items]
    if all(new is old for (_, new), (_, old) in zip(changed, items, strict=True)):
        return value
    if isinstance(value, tuple):
        made = [item for _, item in changed]
        return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
    if isinstance(value, list):
        other = copy.copy(value)
        other[:] = [item for _, item in changed]
        return other
    twin: Any = copy.copy(value)
    if isinstance(value, MutableMapping):
        if isinstance(value, UserDict) and twin.data is value.data:
            twin.data = dict(value.data)  # some copies share their items
        for name, item in changed:
            twin[name] = item
    else:
        for name, item in changed:
            setattr(twin, name, item)
    return twin


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, list | tuple):
        yield from enumerate(value)
    elif isinstance(value, Mapping):
        if isinstance(value, MutableMapping):
            yield from value.items()
    elif hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        yield from ((name, getattr(value, name)) for name in value.__dataclass_fields__)


def _joined(path: str, name: Any) -> str:
    return f"{path}.{name}" if path else str(name)
