"""Tensors of which each rank holds a part: what part that is, and putting parts together in other ways.

Each rank stores its own part. Whoever loads takes, of every stored part, what overlaps with what it needs, so
that another number of ranks, or none, can load what some have saved.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Part:
    """A box of a larger tensor: where it begins, its sides, and the whole's."""

    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    whole: tuple[int, ...]

    def plain(self) -> list[list[int]]:
        """For JSON."""
        return [list(self.offsets), list(self.shape), list(self.whole)]

    @classmethod
    def of(cls, plain: Any) -> "Part":
        """From JSON; raises ValueError where it is no box in a whole."""
        offsets, shape, whole = (tuple(sides) for sides in plain)
        inside = len(offsets) == len(shape) == len(whole) and all(
            type(at) is int and type(side) is int and 0 <= at <= at + side <= all_of_it
            for at, side, all_of_it in zip(offsets, shape, whole, strict=True)
        )
        if not inside:
            raise ValueError("a part that is not in its whole")
        return cls(offsets, shape, whole)


def is_sharded(tensor: Any) -> bool:
    """Whether it is one of torch's distributed tensors."""
    return hasattr(tensor, "placements") and hasattr(tensor, "to_local")


def part_of(tensor: Any) -> Part:
    """Which part of a distributed tensor this rank holds; raises ValueError where parts are to be summed."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    if any(placement.is_partial() for placement in tensor.placements):
        raise ValueError("a distributed tensor whose parts are yet to be summed")
    shape, offsets = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    return Part(tuple(offsets), tuple(shape), tuple(tensor.shape))


def is_stored_here(tensor: Any) -> bool:
    """Of ranks that hold the same part, the first stores it."""
    mesh = tensor.device_mesh
    places = mesh.get_coordinate()
    if places is None:
        return False
    return all(place == 0 for place, how in zip(places, tensor.placements, strict=True) if how.is_replicate())


@dataclasses.dataclass(frozen=True)
class Sharded:
    """A tensor that lies in parts in a checkpoint: each part, and what reads it."""

    parts: tuple[tuple[Part, Callable[[], Any]], ...]

    @property
    def whole(self) -> tuple[int, ...]:
        """The shape of all of it."""
        return self.parts[0][0].whole

    def read(self, torch: Any, wanted: Part | None = None) -> Any:
        """What is wanted of it, or all, on the host; raises ValueError where some of it is missing."""
        wanted = wanted or Part(tuple(0 for _ in self.whole), self.whole, self.whole)
        if wanted.whole != self.whole:
            raise ValueError(f"a tensor of {self.whole} where one of {wanted.whole} is wanted")
        found, filled = None, 0
        for part, read in self.parts:
            overlap = _overlap(part, wanted)
            if overlap is None and found is not None:
                continue
            piece = read()
            if found is None:
                found = torch.empty(wanted.shape, dtype=piece.dtype, device=piece.device)
            if overlap is not None:
                there, here = overlap
                found[here] = piece[there]
                filled += _count(found[here].shape)
        if found is None or filled != _count(wanted.shape):
            raise ValueError("not all parts of a tensor are there")
        return found

    def like(self, torch: Any, tensor: Any) -> Any:
        """As parts on these ranks, as `tensor` is."""
        from torch.distributed.tensor import DTensor

        local = self.read(torch, part_of(tensor)).to(tensor.to_local().device)
        return DTensor.from_local(
            local,
            tensor.device_mesh,
            tensor.placements,
            run_check=False,
            shape=tensor.shape,
            stride=tensor.stride(),
        )


def _overlap(one: Part, other: Part) -> tuple[tuple[slice, ...], tuple[slice, ...]] | None:
    """Where they overlap, as places in each; None where they do not."""
    in_one, in_other = [], []
    for at, side, other_at, other_side in zip(
        one.offsets, one.shape, other.offsets, other.shape, strict=True
    ):
        first, last = max(at, other_at), min(at + side, other_at + other_side)
        if first >= last:
            return None
        in_one.append(slice(first - at, last - at))
        in_other.append(slice(first - other_at, last - other_at))
    return tuple(in_one), tuple(in_other)


def _count(sides: Iterable[int]) -> int:
    count = 1
    for side in sides:
        count *= side
    return count
