"""Items to one call of the model and back: stacked, padded to a few lengths, cut to what belongs to each."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from flatout.infer.serving.loading import Served
from flatout.infer.serving.specs import TensorSpec
from flatout.infer.serving.wire import Item
from flatout.infer.sizes import next_length

OUTPUT = "output"
# Of an item: the name of an input, and which of its dimensions.
Dimension = tuple[str, int]


class Runner:
    """Calls a model with batches; a batch holds items of one key."""

    def __init__(self, served: Served, pads: Mapping[str, float] | None = None) -> None:
        self.served = served
        # What each input is padded with; empty: only items of the same shape share a batch.
        self.pads = dict(pads or {})
        # Batches that the model takes; empty: any. Of any, some may be faster when they are filled up.
        self.sizes: tuple[int, ...] = ()
        self.filled: Callable[[int], int] = lambda count: count
        # Dimensions of outputs that are as long as one of an input is, to be cut with it.
        self.follows: dict[tuple[str, int], Dimension] = {}
        # Dimensions of inputs that the model takes at one length alone: padded, it could not tell any more.
        self.equal: tuple[tuple[Dimension, ...], ...] = ()

    def key(self, item: Item) -> Hashable:
        """Items with the same key fit into one batch."""
        return tuple(self._shape(spec, item[spec.name].shape) for spec in self.served.specs if spec.varies)

    def __call__(self, items: Sequence[Any]) -> list[dict[str, Any]]:
        """The outputs of each item, by name."""
        if not self.served.specs:
            return [{OUTPUT: result} for result in _listed(self.served.call(list(items)))]
        count = len(items)
        for item in items:
            self._insist_on_equal(item)
        inputs = {spec.name: self._stacked(spec, items) for spec in self.served.specs}
        outputs = self.called(inputs)
        arrays = {name: as_numpy(value) for name, value in outputs.items()}
        return [self.own(arrays, row, items[row]) for row in range(count)]

    @torch.inference_mode()
    def called(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """The model's outputs by name, each with the batch first."""
        made = self.served.call(**inputs) if self.served.by_name else self.served.call(*inputs.values())
        size = next(iter(inputs.values())).shape[0]
        return _by_name(made, size)

    def padded_size(self, count: int) -> int:
        """The batch that so many items go into."""
        return next((size for size in self.sizes if size >= count), self.filled(count))

    def _insist_on_equal(self, item: Item) -> None:
        for group in self.equal:
            if len({item[name].shape[along] for name, along in group}) > 1:
                names = ", ".join(f"{name} {list(item[name].shape)}" for name, _ in group)
                raise ValueError(f"inputs of one length are expected, and these differ: {names}")

    def _shape(self, spec: TensorSpec, shape: Sequence[int]) -> tuple[int, ...]:
        if not self.pads:
            return tuple(shape)
        return tuple(
            min(size.most, next_length(length)) if size.varies else length
            for size, length in zip(spec.shape, shape, strict=True)
        )

    def _stacked(self, spec: TensorSpec, items: Sequence[Item]) -> torch.Tensor:
        arrays = [item[spec.name] for item in items]
        shape = self._shape(spec, arrays[0].shape) if spec.varies else arrays[0].shape
        whole = np.empty((self.padded_size(len(items)), *shape), dtype=spec.numpy_dtype)
        if spec.varies and self.pads:
            whole.fill(self.pads.get(spec.name, 0))
        for row, array in enumerate(arrays):
            place: tuple[Any, ...] = (row, *(slice(length) for length in array.shape))
            whole[place] = array
        whole[len(items) :] = whole[0]
        return self.tensor(spec, whole)

    def tensor(self, spec: TensorSpec, whole: np.ndarray[Any, Any]) -> torch.Tensor:
        """A batch of one input, where and as the model takes it."""
        tensor = torch.from_numpy(whole)
        if self.served.device.type == "cuda":
            tensor = tensor.pin_memory().to(self.served.device, non_blocking=True)
        return tensor.to(getattr(torch, spec.dtype)) if spec.dtype == "bfloat16" else tensor

    def own(self, arrays: Mapping[str, Any], row: int, item: Item) -> dict[str, Any]:
        """What belongs to one item: its row, cut where it is as long as the item is."""
        found = {name: array[row] for name, array in arrays.items()}
        for (name, dimension), (source, along) in self.follows.items():
            found[name] = found[name][(*(slice(None),) * dimension, slice(item[source].shape[along]))]
        return found


def _by_name(made: Any, size: int) -> dict[str, Any]:
    """What a model returned, as outputs with the batch first; raises TypeError."""
    if isinstance(made, torch.Tensor | np.ndarray):
        found: dict[str, Any] = {OUTPUT: made}
    elif isinstance(made, Mapping):
        found = {str(name): value for name, value in made.items() if value is not None}
    elif isinstance(made, tuple | list) and made and all(isinstance(one, torch.Tensor) for one in made):
        found = {f"{OUTPUT}{number}": one for number, one in enumerate(made)}
    else:
        found = {OUTPUT: made}
    for name, value in found.items():
        is_array = isinstance(value, torch.Tensor | np.ndarray)
        length = len(value) if (is_array and value.ndim) or isinstance(value, list | tuple) else None
        if length != size:
            what = f"shape {tuple(value.shape)}" if is_array else type(value).__name__
            raise TypeError(f"{name} of {what} for a batch of {size}: one row for each item is expected")
    return found


def _listed(made: Any) -> list[Any]:
    """What a plain function returned, one for each value that it got; raises TypeError."""
    if isinstance(made, torch.Tensor | np.ndarray):
        return list(as_numpy(made).tolist())
    if not isinstance(made, list | tuple):
        raise TypeError(f"{type(made).__name__}: a list with one answer for each input is expected")
    return list(made)


def as_numpy(value: Any) -> Any:
    """On the host, in a type that numpy has; what is no tensor stays as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy(force=True)
