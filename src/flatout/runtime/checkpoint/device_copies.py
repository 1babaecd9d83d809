"""Copies of many tensors on their own device, in a few launches: training waits for as long as these take.

One by one, a thousand parameters and states take a thousand allocations and launches, which is several times
as long as their bytes need.
"""

from collections.abc import Sequence
from typing import Any

# Copies are let go in pieces of about this size, each when all in it have travelled on.
_PIECE_BYTES = 1 << 30
# Where kernels read and write fastest.
_ALIGNED_BYTES = 16


def copies_of(torch: Any, tensors: Sequence[Any]) -> list[Any]:
    """A copy of each, with its own shape and strides; all on one device."""
    copies: list[Any] = [None] * len(tensors)
    together: dict[Any, list[int]] = {}
    for place, tensor in enumerate(tensors):
        if tensor.is_contiguous() and tensor.numel() and not tensor.is_conj() and not tensor.is_neg():
            together.setdefault(tensor.dtype, []).append(place)
        else:
            copies[place] = tensor.clone()
    for places in together.values():
        for some in _in_pieces(tensors, places):
            _copy_together(torch, tensors, some, copies)
    return copies


def _in_pieces(tensors: Sequence[Any], places: list[int]) -> list[list[int]]:
    pieces: list[list[int]] = [[]]
    room = _PIECE_BYTES
    for place in places:
        size = tensors[place].numel() * tensors[place].element_size()
        if pieces[-1] and size > room:
            pieces.append([])
            room = _PIECE_BYTES
        pieces[-1].append(place)
        room -= size
    return pieces


def _copy_together(torch: Any, tensors: Sequence[Any], places: list[int], copies: list[Any]) -> None:
    first = tensors[places[0]]
    step = max(1, _ALIGNED_BYTES // first.element_size())
    counts = [tensors[place].numel() for place in places]
    padded = [-(-count // step) * step for count in counts]
    whole = torch.empty(sum(padded), dtype=first.dtype, device=first.device)
    parts = [
        part if len(part) == count else part[:count]
        for part, count in zip(whole.split(padded), counts, strict=True)
    ]
    torch._foreach_copy_(parts, [tensors[place].view(-1) for place in places])
    for place, part in zip(places, parts, strict=True):
        copies[place] = part.view(tensors[place].shape)
