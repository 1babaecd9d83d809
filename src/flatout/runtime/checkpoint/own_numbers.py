"""Random numbers that a data set keeps to itself: its generators, and those of what it is made of.

A data set may stand behind others (a subset, several in a row), and what it does to its samples may draw, too
(a list of transforms). They are found by looking at attributes, a few deep, and into short lists.
"""

import random
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

from flatout.runtime.checkpoint.random_states import as_bytes, as_state

# Objects behind one another: a subset, its data set, the transforms in a row, one of them.
_DEEPEST = 5
# Longer ones hold samples.
_LONGEST = 64
# Whatever it is made of, this many are looked at.
_MOST = 2000
_CLOSED = (types.ModuleType, types.FunctionType, types.MethodType, type)


def own_generators(torch: Any, data_set: Any) -> list[Any]:
    """All that are found, each once, in the order of the attributes."""
    found: list[Any] = []
    seen: dict[int, Any] = {}
    level = [data_set]
    for _ in range(_DEEPEST):
        inside = {id(inner): inner for one in level for inner in _inside(torch, one)}
        level = [one for key, one in inside.items() if key not in seen][:_MOST]
        seen.update((id(one), one) for one in level)
        found += [one for one in level if _kind_of(torch, one)]
    return found


def _inside(torch: Any, one: Any) -> Iterator[Any]:
    if isinstance(one, (list, tuple)):
        yield from one if len(one) <= _LONGEST else ()
    elif isinstance(one, dict):
        yield from one.values() if len(one) <= _LONGEST else ()
    elif not isinstance(one, (*_CLOSED, torch.Tensor)) and not _kind_of(torch, one):
        yield from getattr(one, "__dict__", {}).values()


def _kind_of(torch: Any, one: Any) -> str:
    if isinstance(one, torch.Generator):
        return "torch"
    if isinstance(one, random.Random) and not isinstance(one, random.SystemRandom):
        return "python"
    numpy = sys.modules.get("numpy.random")
    if numpy is not None and isinstance(one, numpy.Generator):
        return "numpy"
    if numpy is not None and isinstance(one, numpy.RandomState):
        return "numpy-legacy"
    return ""


def states_of(torch: Any, generators: Sequence[Any]) -> list[Any]:
    """Where they stand, as plain data that can be compared; of torch's, bytes."""
    return [_state_of(torch, one) for one in generators]


def _state_of(torch: Any, one: Any) -> Any:
    kind = _kind_of(torch, one)
    if kind == "torch":
        return as_bytes(one.get_state())
    if kind == "python":
        return [kind, one.getstate()]
    if kind == "numpy":
        return [kind, _without_arrays(one.bit_generator.state)]
    return [kind, tuple(_without_arrays(part) for part in one.get_state())]


def put_back_states(torch: Any, generators: Sequence[Any], states: Sequence[Any]) -> None:
    """To where they stood; one that is of another kind by now stays as it is."""
    for one, state in zip(generators, states, strict=False):
        kind = _kind_of(torch, one)
        if kind == "torch" and isinstance(state, bytes):
            one.set_state(as_state(torch, state))
        elif isinstance(state, bytes) or state[0] != kind:
            continue
        elif kind == "python":
            one.setstate(state[1])
        elif kind == "numpy-legacy":
            one.set_state(state[1])
        elif one.bit_generator.state["bit_generator"] == state[1]["bit_generator"]:
            one.bit_generator.state = state[1]


def _without_arrays(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_arrays(one) for name, one in value.items()}
    return value.tolist() if hasattr(value, "tolist") else value
