"""Inputs of many sizes as inputs of a few: padded on the way in, cut on the way out, where that is proven.

A compiled or captured module is made for one shape. Batches are filled up with copies of their last sample,
and sequences with what the user says (a mask of zeros beside it); what a module answers to the rest must
stay the same, and that is tried out, not assumed.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from flatout.infer.failing import words_of
from flatout.infer.optimizing.calling import Arguments, are_same, flat
from flatout.infer.sizes import MOST_SIZES
from flatout.memory.splitting import map_tensors, samples_in, tensors_of
from flatout.records.errors import CallerMistake

Size = tuple[int, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Buckets:
    """The sizes that inputs are padded to.

    `batch`: sizes of a batch; by default that of the examples, its half, and so on down to 1. `length`:
    sizes of a sequence; by default sequences are never padded. `sequences` says which dimension of which
    input is the sequence, by the input's keyword or position: `{"input_ids": 1, "attention_mask": 1}`.
    `fill` is what the padding of an input holds, 0 otherwise: `{"input_ids": 50256}`.
    """

    batch: tuple[int, ...] = ()
    length: tuple[int, ...] = ()
    sequences: Mapping[str | int, int] = dataclasses.field(default_factory=dict)
    fill: Mapping[str | int, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        sizes = (*self.batch, *self.length)
        if any(one < 1 for one in sizes) or len(self.batch) > MOST_SIZES or len(self.length) > MOST_SIZES:
            raise CallerMistake(
                f"buckets of {', '.join(map(str, sizes))}",
                expected=f"sizes of 1 and more, at most {MOST_SIZES} for the batch and for the length",
                remedy="leave some out: inputs are padded to the next larger one",
            )
        if self.length and not self.sequences:
            raise CallerMistake(
                "lengths to pad to, and no input that has a length",
                expected="the dimension of the sequence by input, masks among them",
                remedy='Buckets(length=(128, 256), sequences={"input_ids": 1, "attention_mask": 1})',
            )


@dataclasses.dataclass(frozen=True)
class Fitting:
    """Which inputs have samples and lengths, and in which dimensions outputs have."""

    spec: Any
    # The example's leaves: shapes for tensors, other values as they are.
    looks: tuple[Any, ...]
    # By leaf: the dimension of the sequence; and what padding holds.
    by_sample: frozenset[int]
    by_length: Mapping[int, int]
    fill: Mapping[int, float]
    cut_samples: tuple[int | None, ...] = ()
    cut_length: tuple[int | None, ...] = ()

    def size_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Size | None:
        """Samples and length of a call that differs from the example in nothing else; else None."""
        leaves, spec = tree_flatten((args, kwargs))
        if spec != self.spec:
            return None
        samples, lengths = set(), set()
        for place, (leaf, look) in enumerate(zip(leaves, self.looks, strict=True)):
            if not isinstance(leaf, torch.Tensor):
                if isinstance(look, _Shape) or not are_same(leaf, look):
                    return None
                continue
            if not isinstance(look, _Shape) or not look.takes(leaf):
                return None
            for dimension, size in enumerate(leaf.shape):
                if dimension == 0 and place in self.by_sample:
                    samples.add(size)
                elif self.by_length.get(place) == dimension:
                    lengths.add(size)
                elif size != look.shape[dimension]:
                    return None
        if len(samples) > 1 or len(lengths) > 1 or 0 in samples | lengths:
            return None
        return samples.pop() if samples else 0, lengths.pop() if lengths else 0

    def padded(self, call: Arguments, size: Size) -> Arguments:
        """The same call with this many samples of this length."""
        leaves, again = flat(call.args, call.kwargs)
        wider = list(leaves)
        for place in self.by_length:
            wider[place] = _longer(wider[place], self.by_length[place], size[1], self.fill.get(place, 0))
        for place in self.by_sample:
            wider[place] = _more(wider[place], size[0])
        return again(wider)

    def cut(self, outputs: Any, size: Size) -> Any:
        """What belongs to the samples and lengths that were given."""
        places = iter(range(len(self.cut_samples)))

        def cut(tensor: torch.Tensor) -> torch.Tensor:
            place = next(places)
            for dimension, wanted in ((self.cut_samples[place], size[0]), (self.cut_length[place], size[1])):
                if dimension is not None:
                    tensor = tensor.narrow(dimension, 0, wanted)
            return tensor

        return map_tensors(cut, outputs)

    def beside(self, call: Arguments, other: Arguments) -> Arguments:
        """The samples of both in one call."""
        leaves, again = flat(call.args, call.kwargs)
        others, _ = flat(other.args, other.kwargs)
        return again(
            [torch.cat([one, others[at]]) if at in self.by_sample else one for at, one in enumerate(leaves)]
        )

    def parts(self, call: Arguments, size: int, samples: int) -> list[Arguments]:
        """The call in several of at most `size` samples."""
        leaves, again = flat(call.args, call.kwargs)

        def part(start: int) -> Arguments:
            return again(
                [one[start : start + size] if at in self.by_sample else one for at, one in enumerate(leaves)]
            )

        return [part(start) for start in range(0, samples, size)]

    def shortened(self, call: Arguments, length: int) -> Arguments:
        """The call with sequences of at most this length."""
        leaves, again = flat(call.args, call.kwargs)
        for place, dimension in self.by_length.items():
            leaves[place] = leaves[place].narrow(dimension, 0, min(length, leaves[place].shape[dimension]))
        return again(leaves)

    def joined(self, outputs: list[Any]) -> Any:
        """The outputs of parts as one; what has no samples is the first part's."""
        rows = [list(tensors_of(one)) for one in outputs]
        places = iter(range(len(self.cut_samples)))

        def join(tensor: torch.Tensor) -> torch.Tensor:
            place = next(places)
            dimension = self.cut_samples[place]
            return tensor if dimension is None else torch.cat([row[place] for row in rows], dimension)

        return map_tensors(join, outputs[0])


@dataclasses.dataclass(frozen=True)
class _Shape:
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def takes(self, tensor: torch.Tensor) -> bool:
        return tensor.dim() == len(self.shape) and tensor.dtype == self.dtype and tensor.device == self.device


def fitting(call: Callable[..., Any], example: Arguments, spec: Buckets) -> Fitting | str:
    """How calls like this one can be padded, by trying, or why they cannot; values are not compared."""
    leaves, tree = tree_flatten((example.args, example.kwargs))
    names = _names(example)
    try:
        samples = samples_in((example.args, example.kwargs))
    except CallerMistake as mistake:
        return mistake.received
    tensors = {place: leaf for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)}
    missing = [str(name) for name in (*spec.sequences, *spec.fill) if name not in names]
    if missing:
        return f"the example has no input {', '.join(missing)}"
    by_length = {}
    for name, dimension in spec.sequences.items():
        has = tensors[names[name]].dim()
        if not -has <= dimension < has:
            return f"the input {name} has {has} dimensions, and its sequence is to be in {dimension}"
        by_length[names[name]] = dimension % has
    made = Fitting(
        spec=tree,
        looks=tuple(
            _Shape(tuple(one.shape), one.dtype, one.device) if isinstance(one, torch.Tensor) else one
            for one in leaves
        ),
        by_sample=frozenset(at for at, one in tensors.items() if one.dim() and one.shape[0] == samples),
        by_length=by_length,
        fill={names[name]: value for name, value in spec.fill.items()},
    )
    return _with_cuts(call, example, made)


def _with_cuts(call: Callable[..., Any], example: Arguments, made: Fitting) -> Fitting | str:
    size = made.size_of(example.args, example.kwargs)
    if size is None:
        return "its inputs disagree on samples or lengths"
    before = [tuple(one.shape) for one in tensors_of(example.copied().of(call))]
    cuts = []
    for more in ((1, 0), (0, 1 if made.by_length else 0)):
        larger = made.padded(example.copied(), (size[0] + more[0], size[1] + more[1]))
        try:
            after = [tuple(one.shape) for one in tensors_of(larger.of(call))]
        except Exception as error:  # noqa: BLE001 - the module insists on its sizes, or memory does
            return f"a larger input fails: {words_of(error)}"
        found = _grown(before, after)
        if isinstance(found, str):
            return found
        cuts.append(found)
    return dataclasses.replace(made, cut_samples=cuts[0], cut_length=cuts[1])


def _grown(before: list[tuple[int, ...]], after: list[tuple[int, ...]]) -> tuple[int | None, ...] | str:
    """By output: the dimension that grew by one."""
    if len(before) != len(after):
        return "a larger input gives another number of outputs"
    found: list[int | None] = []
    for one, other in zip(before, after, strict=True):
        grown = [at for at, (small, large) in enumerate(zip(one, other, strict=False)) if small != large]
        if len(one) != len(other) or len(grown) > 1 or any(other[at] != one[at] + 1 for at in grown):
            return f"with one more, an output of {one} becomes {other}"
        found.append(grown[0] if grown else None)
    return tuple(found)


def _names(example: Arguments) -> dict[str | int, int]:
    """The place of each input among the leaves, by position or keyword, for those that are tensors."""
    found: dict[str | int, int] = {}
    place = 0
    inputs: dict[str | int, Any] = dict(enumerate(example.args))
    inputs.update(example.kwargs.items())
    for name, value in inputs.items():
        count = len(tree_flatten(value)[0])
        if isinstance(value, torch.Tensor):
            found[name] = place
        place += count
    return found


def _more(tensor: torch.Tensor, samples: int) -> torch.Tensor:
    missing = samples - tensor.shape[0]
    if not missing:
        return tensor
    return torch.cat([tensor, tensor[-1:].expand(missing, *tensor.shape[1:])])


def _longer(tensor: torch.Tensor, dimension: int, length: int, fill: float) -> torch.Tensor:
    missing = length - tensor.shape[dimension]
    if not missing:
        return tensor
    shape = list(tensor.shape)
    shape[dimension] = missing
    return torch.cat([tensor, tensor.new_full(shape, fill)], dimension)
