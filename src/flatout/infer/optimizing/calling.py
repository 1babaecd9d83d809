"""How a module is called: its arguments, taken apart and put together, and what two calls have in common."""

import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from flatout.memory.splitting import map_tensors, tensors_of
from flatout.records.errors import CallerMistake

# What a call or an output may hold beside tensors: it is what it is in each call, and holds none itself.
_PLAIN = (type(None), str, bytes, int, float, complex, enum.Enum, torch.dtype, torch.device)


@dataclasses.dataclass(frozen=True, eq=False)
class Arguments:
    """What one call is given."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def tensors(self) -> list[torch.Tensor]:
        """All tensors, in order."""
        return list(tensors_of((self.args, self.kwargs)))

    def mapped(self, change: Callable[[Any], Any]) -> "Arguments":
        """The same call with other tensors."""
        args, kwargs = map_tensors(change, (self.args, self.kwargs))
        return Arguments(args, kwargs)

    def copied(self) -> "Arguments":
        """With tensors of its own: a module may write into what it is given."""
        return self.mapped(lambda tensor: tensor.detach().clone())

    def of(self, call: Callable[..., Any]) -> Any:
        """Call it."""
        return call(*self.args, **self.kwargs)


def arguments(given: Any) -> Arguments:
    """A tensor, a tuple of arguments or a dict of keywords, as a call."""
    if isinstance(given, Arguments):
        return given
    if isinstance(given, tuple):
        return Arguments(given, {})
    if isinstance(given, dict):
        return Arguments((), dict(given))
    return Arguments((given,), {})


def examples_of(given: Any) -> list[Arguments]:
    """One call, or a list of some."""
    found = [arguments(one) for one in given] if isinstance(given, list) else [arguments(given)]
    if not found or not all(one.tensors() for one in found):
        raise CallerMistake(
            "example inputs without a tensor",
            expected="what the module is called with: a tensor, a tuple of arguments, a dict of keywords, "
            "or a list of these",
            remedy="flatout.optimize(model, torch.randn(8, 3, 224, 224))",
        )
    return found


def key_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a call looks like; None where that cannot be told, which no compiled graph may answer.

    Calls of one key can share a graph.
    """
    leaves, spec = tree_flatten((args, kwargs))
    try:
        key = (spec, *map(_look, leaves))
        hash(key)
    except TypeError:
        return None
    return key


def _look(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.shape, leaf.dtype, leaf.device
    if isinstance(leaf, _PLAIN):
        # 1, 1.0 and True are equal, and are not the same to a model.
        return type(leaf), leaf
    if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
        leaves, spec = tree_flatten([getattr(leaf, one.name, None) for one in dataclasses.fields(leaf)])
        return type(leaf), spec, *map(_look, leaves)
    # It may hold anything, and something else in the next call; nor is it ours to keep.
    raise TypeError(f"nobody knows what a {type(leaf).__name__} holds")


def are_same(one: Any, other: Any) -> bool:
    """Of two values beside tensors: whether a module is given the same."""
    return one is other or (type(one) is type(other) and isinstance(one, _PLAIN) and bool(one == other))


def flat(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], Callable[[list[Any]], Arguments]]:
    """The leaves of a call, and how to make a call of others."""
    leaves, spec = tree_flatten((args, kwargs))

    def again(others: list[Any]) -> Arguments:
        return Arguments(*tree_unflatten(others, spec))

    return leaves, again


def opaque_in(value: Any) -> str:
    """The kind of an object, in a nesting, that may hold tensors which nobody sees; empty where none is."""
    if isinstance(value, (torch.Tensor, *_PLAIN)):
        return ""
    if isinstance(value, list | tuple):
        items = list(value)
    elif isinstance(value, Mapping):
        items = list(value.values())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = [getattr(value, one.name, None) for one in dataclasses.fields(value)]
    else:
        return type(value).__name__
    return next((kind for kind in map(opaque_in, items) if kind), "")
