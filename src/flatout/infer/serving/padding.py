"""Items of different sizes in one batch: which outputs are cut to an item's own size, and whether it may be.

One dimension of the inputs is made shorter at a time, or several where the model takes them at one length
alone: what becomes shorter in the outputs is as long as these are.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from flatout.infer.failing import words_of
from flatout.infer.serving.collating import Dimension, Runner, as_numpy
from flatout.infer.serving.wire import Item

_FEW = 3
# Each combination of them is tried, until all have been found.
_MOST_VARYING = 6
_UNSHARED = "items of different sizes do not share a batch"
Outputs = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class _Group:
    """Dimensions of inputs that have one length: what it was made, and what came of that."""

    members: tuple[Dimension, ...]
    length: int
    outputs: Outputs


def settle_padding(runner: Runner, item: Item, differing: Callable[[Outputs, Outputs], str]) -> str:
    """Learn how outputs are cut; where padding changes answers, turn it off, and say why."""
    if not runner.pads:
        return f"{_UNSHARED}; --pad says what they may be filled up with"
    pads, runner.pads = runner.pads, {}
    try:
        words = _settled(runner, pads, _longest(runner, item), differing)
    except Exception as error:  # noqa: BLE001 - whatever it does not like
        words = f"an item of another size makes the model fail ({words_of(error)})"
    if not words:
        runner.pads = pads
        return ""
    runner.follows, runner.equal = {}, ()
    return f"no padding: {words}; {_UNSHARED}"


def _settled(
    runner: Runner, pads: dict[str, float], long: Item, differing: Callable[[Outputs, Outputs], str]
) -> str:
    """What speaks against it; empty where nothing does."""
    varying = _varying(runner)
    if len(varying) > _MOST_VARYING:
        return f"{len(varying)} sizes vary, and which outputs belong to which is learned of {_MOST_VARYING}"
    more = runner([long])[0]
    groups = list(_groups(runner, long, varying))
    words = _learned(runner, long, more, groups)
    if words:
        return words
    lengths = {one: group.length for group in groups for one in group.members}
    short = _shortened(long, lengths)
    less = runner([short])[0]
    # Beside a longer one of the same bucket it would be padded so far, at most.
    try:
        padded = _within(runner, pads, short, long)
    except Exception as error:  # noqa: BLE001 - whatever it does not like
        return f"a padded item makes the model fail ({words_of(error)})"
    runner.equal = tuple(group.members for group in groups if len(group.members) > 1)
    found = differing(less, padded)
    return f"it changes answers ({found})" if found else ""


def _varying(runner: Runner) -> list[Dimension]:
    return [
        (spec.name, along)
        for spec in runner.served.specs
        for along, size in enumerate(spec.shape)
        if size.varies
    ]


def _longest(runner: Runner, item: Item) -> Item:
    """The item at its largest, its own values repeated."""
    found = {}
    for spec in runner.served.specs:
        array = item[spec.name]
        more = [(0, most - length) for most, length in zip(spec.largest, array.shape, strict=True)]
        found[spec.name] = np.pad(array, more, mode="wrap") if array.ndim else array
    return found


def _groups(runner: Runner, long: Item, varying: Sequence[Dimension]) -> Iterator[_Group]:
    """Dimensions that the model takes at another length than the rest: alone, or only together."""
    left, taken, refused = list(varying), set[int](), None
    for count in range(1, len(varying) + 1):
        for members in itertools.combinations(varying, count):
            length = _length(runner, members, taken)
            if not set(members) <= set(left) or length is None:
                continue
            try:
                outputs = runner([_shortened(long, dict.fromkeys(members, length))])[0]
            except Exception as error:  # noqa: BLE001 - then not at this length, or not alone
                refused = error
                continue
            left = [one for one in left if one not in members]
            taken.add(length)
            yield _Group(members, length, outputs)
    if left and refused is not None:
        raise refused


def _length(runner: Runner, members: Sequence[Dimension], taken: set[int]) -> int | None:
    """About a third of the largest, that all of them may have, and that no other group has if that can be."""
    shapes = {spec.name: spec.shape for spec in runner.served.specs}
    sizes = [shapes[name][along] for name, along in members]
    least, most = max(size.least for size in sizes), min(size.most for size in sizes)
    wanted = most // _FEW
    # Of length 1, many a model takes what it otherwise does not.
    return min(
        range(least, most),
        key=lambda length: (length in taken, length == 1, abs(length - wanted)),
        default=None,
    )


def _shortened(long: Item, lengths: Mapping[Dimension, int]) -> Item:
    return {
        name: array[tuple(slice(lengths.get((name, along))) for along in range(array.ndim))]
        for name, array in long.items()
    }


def _learned(runner: Runner, long: Item, more: Outputs, groups: Sequence[_Group]) -> str:
    """Which dimension of an output goes with which group; words where it might be one or another."""
    for group in groups:
        name, along = group.members[0]
        wanted = (group.length, long[name].shape[along])
        for output, dimension in _changed(group.outputs, more, wanted):
            before = runner.follows.setdefault((output, dimension), group.members[0])
            if before != group.members[0]:
                return f"{output} goes with the size of both {before[0]} and {name}"
    return ""


def _changed(less: Outputs, more: Outputs, wanted: tuple[int, int]) -> Iterator[Dimension]:
    """Dimensions of outputs that went from the one length to the other."""
    for name, value in less.items():
        for dimension, lengths in enumerate(zip(np.shape(value), np.shape(more[name]), strict=False)):
            if lengths == wanted:
                yield name, dimension


def _within(runner: Runner, pads: Mapping[str, float], short: Item, long: Item) -> Outputs:
    """The short item's answer where it is padded as far as the long one."""
    padded = {}
    for name, array in short.items():
        whole = np.full(long[name].shape, pads.get(name, 0), dtype=array.dtype)
        whole[tuple(slice(length) for length in array.shape)] = array
        padded[name] = whole
    inputs = {spec.name: runner.tensor(spec, padded[spec.name][None]) for spec in runner.served.specs}
    outputs = {name: as_numpy(value) for name, value in runner.called(inputs).items()}
    return runner.own(outputs, 0, short)
