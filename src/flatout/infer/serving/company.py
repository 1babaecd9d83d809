"""Other items to put beside one: of other values, not only in another order, and such as its model takes.

A statistic over the whole batch is the same where the others hold the same numbers. So they hold others: less
spread, and moved to one side. What an example shows is kept: integers stay in its range, what is never
negative stays so, shares stay between 0 and 1. Some models refuse more than that, so there are gentler ones.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from flatout.infer.serving.specs import TensorSpec
from flatout.infer.serving.wire import Item

_Array = np.ndarray[Any, Any]
# By company: how far its values are spread, and where they lie, both in widths of the item's own.
_SPREAD, _MOVED = (2.0, 0.25), (3.0, -2.0)
# By company: the part of the item's range that its values come from.
_PARTS = ((0.0, 0.4), (0.5, 1.0))
_FEW = 4
Companies = tuple[Item, Item]
_Making = Callable[[_Array, int], _Array]


def companies(specs: Mapping[str, TensorSpec], item: Item) -> Iterator[Companies]:
    """Pairs of others that differ from the item and from each other, from the boldest to the gentlest."""
    is_other = False
    for floats, integers in ((_beyond, _drawn), (_within, _drawn), (_within, _kept), (_turned, _turned)):
        pair = _pair(specs, item, floats, integers)
        if any(_differ(item, one) for one in pair):
            is_other = True
            yield pair
    if not is_other:
        # Zeros are all that is shown. There may be no other number for one input among many, but for the
        # only one that there is, there will be.
        yield _pair(specs, item, _within, _some_ones)


def _differ(one: Item, other: Item) -> bool:
    """Whether an input does."""
    return any(not np.array_equal(array, other[name]) for name, array in one.items())


def _pair(specs: Mapping[str, TensorSpec], item: Item, floats: _Making, integers: _Making) -> Companies:
    def made(number: int) -> Item:
        found = {}
        for name, array in item.items():
            values = np.asarray((floats if array.dtype.kind == "f" else integers)(array, number))
            most = specs[name].largest_value
            if most is not None:
                values = np.where(np.isfinite(values), np.clip(values, -most, most), values)
            found[name] = values.astype(array.dtype)
        return found

    return made(0), made(1)


def _beyond(array: _Array, number: int) -> _Array:
    """Floating point values beyond those of the item, where what it shows does not speak against it."""
    own = array[np.isfinite(array)].astype(np.float64)
    if not own.size or _are_shares(own) or _are_codes(own):
        return _within(array, number)
    width = float(own.std()) or float(np.abs(own).max()) or 1.0
    drawn = np.asarray(_random(number).standard_normal(array.shape))
    made = own.mean() + width * (_MOVED[number] + _SPREAD[number] * drawn)
    return _with_odd(np.abs(made) if own.min() >= 0 and own.max() > 0 else made, array)


def _within(array: _Array, number: int) -> _Array:
    """Floating point values of a part of the item's range; of numbers all alike, between them and 0."""
    own = array[np.isfinite(array)].astype(np.float64)
    if not own.size:
        return array
    if _are_codes(own):
        return _with_odd(_drawn_of(own, array.shape, number), array)
    least, most = float(own.min()), float(own.max())
    if least == most:
        least, most = (min(least, 0.0), max(most, 0.0)) if most else (-1.0, 1.0)
    low, high = (least + part * (most - least) for part in _PARTS[number])
    return _with_odd(np.asarray(_random(number).uniform(low, high, array.shape)), array)


def _drawn(array: _Array, number: int) -> _Array:
    """Integers of the range that the item shows; below zero they may be marks, and only these are drawn."""
    if array.dtype.kind == "b":
        return _unlike(np.asarray(_random(number).random(array.shape)) < 0.5, array, 0, 1)
    least, most = int(array.min()), int(array.max())
    if least < 0:
        return _drawn_of(array, array.shape, number)
    # A mask of ones has zeros as well.
    least = 0 if least == most else least
    low, high = least, most
    if most - least >= _FEW:
        low, high = (least, (least + most) // 2) if number == 0 else ((least + most) // 2, most)
    made = np.asarray(_random(number).integers(low, high, array.shape, endpoint=True))
    return _unlike(made, array, least, most)


def _drawn_of(values: _Array, shape: tuple[int, ...], number: int) -> _Array:
    """Some of these, of the smaller ones or the larger ones."""
    known = np.unique(values)
    part = known[: (len(known) + 1) // 2] if number == 0 else known[len(known) // 2 :]
    return np.asarray(_random(number).choice(known if len(known) == 2 else part, shape))


def _unlike(made: _Array, array: _Array, least: int, most: int) -> _Array:
    """Few numbers are soon drawn as they were."""
    if not np.array_equal(made, array):
        return made
    return np.full_like(array, most if (array == least).all() else least)


def _some_ones(array: _Array, number: int) -> _Array:
    """In every other place."""
    return np.asarray(np.arange(array.size) % 2 == number).reshape(array.shape)


def _kept(array: _Array, _number: int) -> _Array:
    return array


def _turned(array: _Array, number: int) -> _Array:
    """The item's own values in another order."""
    flat = array.ravel()
    return (flat[::-1] if number == 0 else np.roll(flat, 1)).reshape(array.shape)


def _are_shares(own: _Array) -> bool:
    return bool(own.min() >= 0 and own.max() <= 1 and len(np.unique(own)) > 1)


def _are_codes(own: _Array) -> bool:
    """Whole numbers, and not always the same: they may stand for something."""
    return len(np.unique(own)) > 1 and bool(np.equal(own, np.round(own)).all())


def _with_odd(made: _Array, array: _Array) -> _Array:
    """Infinities and what is no number stay where they are: a mask may consist of them."""
    return np.where(np.isfinite(array), made, array)


def _random(number: int) -> np.random.Generator:
    # Not that of an example that was made up.
    return np.random.default_rng(1 + number)
