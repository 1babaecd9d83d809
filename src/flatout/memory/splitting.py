"""A batch cut into parts, and what each part weighs.

Parts are views: cutting copies nothing.
"""

import copy
import math
from collections import Counter, UserDict
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

from flatout.records.errors import CallerMistake


def samples_in(batch: Any, samples: int | None = None) -> int:
    """How many samples a batch has: the first dimension of its tensors.

    Not every tensor needs to have it: scalars and what all samples share may travel along. Where the first
    tensor has another one than most, nobody can tell, and `samples` must say it.
    """
    found = Counter(tensor.shape[0] for tensor in tensors_of(batch) if tensor.dim())
    if samples is not None:
        if samples < 1 or samples not in found:
            raise CallerMistake(
                f"no tensor of the batch has {samples} as its first dimension: {_shapes(batch)}",
                expected="tensors with one entry for each sample along their first dimension",
                remedy="see what `samples` returns for this batch, or leave it out",
            )
        return samples
    first = int(next(iter(found), 0))
    if not first:
        raise CallerMistake(
            f"a batch in which no samples are found: {_shapes(batch) or type(batch).__qualname__}",
            expected="tensors, in any nesting, with one entry for each sample along their first dimension",
            remedy="put what differs from sample to sample into tensors that begin with the batch dimension",
        )
    if found[first] < max(found.values()):
        raise CallerMistake(
            f"a batch whose number of samples cannot be told: {_shapes(batch)}",
            expected="tensors with one entry for each sample along their first dimension",
            remedy="let `samples` say how many there are, or keep out of the batch what they share",
        )
    return first


def split(batch: Any, size: int, samples: int) -> list[Any]:
    """The batch in parts of `size` samples, the last one with what is left.

    What does not begin with the batch dimension goes into each part whole.
    """
    if size >= samples:
        return [batch]

    def part(start: int) -> Any:
        def cut(tensor: Any) -> Any:
            is_by_sample = tensor.dim() and tensor.shape[0] == samples
            return tensor[start : start + size] if is_by_sample else tensor

        return map_tensors(cut, batch)

    return [part(start) for start in range(0, samples, size)]


def sizes_of_parts(size: int, samples: int) -> list[int]:
    """How many samples are in each part."""
    return [min(size, samples - start) for start in range(0, samples, size)]


def shares(weights: Sequence[float]) -> list[float]:
    """What each part is of the whole. Where nothing weighs anything, all parts do the same."""
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights):
        raise CallerMistake(
            f"weights of parts: {', '.join(f'{weight:g}' for weight in weights)}",
            expected="a number of 0 or more for each part, such as its targets that count",
            remedy="see what `weigh` returns for a part of the batch",
        )
    total = math.fsum(weights)
    if not total:
        return [1 / len(weights)] * len(weights)
    return [weight / total for weight in weights]


def tensors_of(value: Any) -> Iterator[Any]:
    """Every tensor in a nesting of tuples, lists, dicts, named tuples and dataclasses, in order."""
    if hasattr(value, "untyped_storage"):
        yield value
    else:
        for _, item in _items(value):
            yield from tensors_of(item)


def map_tensors(change: Callable[[Any], Any], value: Any) -> Any:
    """The same nesting with `change(tensor)` in place of each tensor; containers keep their types.

    As deep as it goes, unlike `map_leaves` of the levers: a tensor that is overlooked would be in each part.
    """
    if hasattr(value, "untyped_storage"):
        return change(value)
    items = _items(value)
    changed = [(name, map_tensors(change, item)) for name, item in items]
    if all(new is old for (_, new), (_, old) in zip(changed, items, strict=True)):
        return value
    if isinstance(value, tuple):
        made = [item for _, item in changed]
        return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
    if isinstance(value, Mapping) and not isinstance(value, MutableMapping):
        return type(value)(dict(changed))  # type: ignore[call-arg]
    twin: Any = copy.copy(value)
    if isinstance(value, list):
        twin[:] = [item for _, item in changed]
    elif isinstance(value, MutableMapping):
        if isinstance(value, UserDict) and twin.data is value.data:
            twin.data = dict(value.data)  # some copies share their items
        for name, item in changed:
            twin[name] = item
    else:
        for name, item in changed:
            object.__setattr__(twin, name, item)  # a frozen one is new, and nobody's yet
    return twin


def _items(value: Any) -> list[tuple[Any, Any]]:
    if type(value).__name__ == "PackedSequence":
        raise CallerMistake(
            "a PackedSequence in the batch",
            expected="tensors that begin with the batch dimension: its samples lie across each other",
            remedy="give padded tensors and lengths, and pack them in the step",
        )
    if isinstance(value, list | tuple):
        return list(enumerate(value))
    if isinstance(value, Mapping):
        return list(value.items())
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        return [(name, getattr(value, name)) for name in value.__dataclass_fields__ if hasattr(value, name)]
    return []


def _shapes(batch: Any) -> str:
    return ", ".join(f"{tuple(tensor.shape)}" for tensor in tensors_of(batch))
