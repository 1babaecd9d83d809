"""What one item of a request looks like: names, element types and sizes, from examples or from words.

`x:float32[3,224,224]` is one image; `ids:int64[1-512]` is a text of 1 to 512 tokens. An item has no batch
dimension: the server makes batches.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flatout.records.errors import CallerMistake, UnknownName, nearest

# As torch calls them, and what numpy has for them: it knows no bfloat16, whose values come as float32.
DTYPES: dict[str, str] = {
    **{
        name: name
        for name in ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
    },
    "bfloat16": "float32",
}
_LARGEST = {
    "float64": 1.7976931348623157e308,
    "float32": 3.4028234663852886e38,
    "float16": 65504.0,
    "bfloat16": 3.3895313892515355e38,
}
_WORDS = re.compile(r"(?P<name>[A-Za-z_]\w*):(?P<dtype>\w+)\[(?P<shape>[\d\-,\s]*)\]")
# No JSON is parsed deeper, and no tensor of ours has more dimensions.
_MOST_DIMENSIONS = 8


@dataclasses.dataclass(frozen=True)
class Size:
    """One dimension: from `least` to `most`."""

    least: int
    most: int

    @property
    def varies(self) -> bool:
        """Whether items may differ in it."""
        return self.least != self.most

    def __str__(self) -> str:
        return f"{self.least}-{self.most}" if self.varies else str(self.most)


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """One input of an item."""

    name: str
    dtype: str
    shape: tuple[Size, ...]

    def __str__(self) -> str:
        return f"{self.name}:{self.dtype}[{','.join(map(str, self.shape))}]"

    @property
    def varies(self) -> bool:
        """Whether items may differ in a dimension."""
        return any(size.varies for size in self.shape)

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """What its values are read as."""
        return np.dtype(DTYPES[self.dtype])

    @property
    def largest_value(self) -> float | None:
        """Of floating point; None for others."""
        return _LARGEST.get(self.dtype)

    @property
    def largest(self) -> tuple[int, ...]:
        """The shape of the largest item."""
        return tuple(size.most for size in self.shape)

    def problem(self, shape: Sequence[int]) -> str:
        """What is wrong with a shape; empty where nothing is."""
        fits = len(shape) == len(self.shape) and all(
            size.least <= length <= size.most for size, length in zip(self.shape, shape, strict=True)
        )
        return "" if fits else f"the shape of {self.name!r} is [{','.join(map(str, shape))}]"

    def example(self, sizes: Sequence[int] | None = None) -> np.ndarray[Any, Any]:
        """An item of its own: the same for the same sizes, and neither empty nor all alike."""
        shape = self.largest if sizes is None else tuple(sizes)
        random = np.random.default_rng(0)
        if self.dtype == "bool":
            return random.random(shape) < 0.5
        if np.issubdtype(self.numpy_dtype, np.integer):
            return random.integers(0, 2, shape).astype(self.numpy_dtype)
        return random.standard_normal(shape).astype(self.numpy_dtype)


def parsed(words: str) -> TensorSpec:
    """A spec from `name:dtype[sizes]`."""
    found = _WORDS.fullmatch(words.strip())
    if found is None:
        raise _unreadable(words)
    dtype = found["dtype"]
    if dtype not in DTYPES:
        raise UnknownName("dtype", dtype, DTYPES)
    sizes = [_size(word.strip(), words) for word in found["shape"].split(",") if word.strip()]
    if len(sizes) > _MOST_DIMENSIONS:
        raise _unreadable(words)
    return TensorSpec(found["name"], dtype, tuple(sizes))


def checked_pads(pads: Mapping[str, str], specs: Sequence[TensorSpec]) -> dict[str, float]:
    """What each input is filled up with, as numbers; raises CallerMistake where one is for no input."""
    known = {spec.name: spec for spec in specs}
    for name, value in pads.items():
        if name not in known:
            raise UnknownName("input", name, known, remedy=_pad_remedy(name, value, known))
        if not _holds(known[name], float(value)):
            raise CallerMistake(
                f"--pad {name}={value}",
                expected=f"a number that {known[name].dtype} holds",
                remedy=f"--pad {name}=0",
            )
    return {name: float(value) for name, value in pads.items()}


def _pad_remedy(name: str, value: str, known: Mapping[str, TensorSpec]) -> str:
    near = nearest(name, known)
    return f"--pad {near}={value}" if near else "--pad with the name of an input, or without --pad"


def _holds(spec: TensorSpec, value: float) -> bool:
    if spec.dtype == "bool":
        return value in (0, 1)
    if spec.numpy_dtype.kind in "iu":
        info = np.iinfo(spec.numpy_dtype)
        return value.is_integer() and info.min <= value <= info.max
    return not math.isfinite(value) or abs(value) <= (spec.largest_value or 0.0)


def _size(word: str, words: str) -> Size:
    least, dash, most = word.partition("-")
    if not least.isdigit() or (dash and not most.isdigit()):
        raise _unreadable(words)
    size = Size(int(least), int(most or least))
    if not 1 <= size.least <= size.most:
        raise _unreadable(words)
    return size


def _unreadable(words: str) -> CallerMistake:
    return CallerMistake(
        f"--input {words!r} describes no tensor",
        expected="NAME:DTYPE[SIZES] of one item, without a batch dimension",
        remedy="--input x:float32[3,224,224]   # or ids:int64[1-512] where items differ in length",
    )
