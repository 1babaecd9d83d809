"""A kernel for the attention of one new token a row: all heads that share keys in one block, keys in parts.

The kernels that torch has are made for many queries. With one, a block for each head of keys has little to do
and much to wait for: long caches are looked at in parts, by blocks of their own, and put together after that.
"""

import torch
import triton  # type: ignore[import-untyped,import-not-found,unused-ignore]
from triton import language as tl  # type: ignore[import-untyped,import-not-found,unused-ignore]

# Places that a block looks at in a turn; a product on tensor cores has no fewer rows than this.
_BLOCK, _FEWEST_ROWS = 128, 16
# Up to so many places, one block does a head; beyond, parts of at least so many.
_WHOLE, _PART = 512, 256
# Blocks that keep a GPU busy; more parts than that only have to be put together.
_ENOUGH_BLOCKS = 264
_WIDTHS = (32, 64, 128, 256)
_DTYPES = (torch.bfloat16, torch.float16)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _look(  # type: ignore[no-untyped-def]
    query, keys, values, mask, out, most, total, scale, shared, places, part_places, parts,
    query_row, query_head, keys_row, keys_head, keys_place, values_row, values_head, values_place, mask_row,
    group: tl.constexpr, room: tl.constexpr, width: tl.constexpr, block: tl.constexpr, is_whole: tl.constexpr,
):  # fmt: skip
    """One part of the places, for one row and one head of keys, with all heads of queries that share it."""
    row = tl.program_id(0) // shared
    head = tl.program_id(0) % shared
    part = tl.program_id(1)
    members, numbers = tl.arange(0, room), tl.arange(0, width)
    is_member = members < group
    heads = head * group + members
    asked = tl.load(
        query + row.to(tl.int64) * query_row + heads[:, None] * query_head + numbers[None, :],
        mask=is_member[:, None],
        other=0.0,
    )
    own_keys = keys + row.to(tl.int64) * keys_row + head.to(tl.int64) * keys_head
    own_values = values + row.to(tl.int64) * values_row + head.to(tl.int64) * values_head
    top = tl.full([room], float("-inf"), tl.float32)
    summed = tl.zeros([room], tl.float32)
    found = tl.zeros([room, width], tl.float32)
    first = part * part_places
    for start in range(first, tl.minimum(first + part_places, places), block):
        at = start + tl.arange(0, block)
        inside = at < places
        seen = inside & (tl.load(mask + row * mask_row + at, mask=inside, other=0) != 0)
        key = tl.load(own_keys + at[:, None] * keys_place + numbers[None, :], mask=inside[:, None], other=0.0)
        value = tl.load(
            own_values + at[:, None] * values_place + numbers[None, :], mask=inside[:, None], other=0.0
        )
        scores = tl.where(seen[None, :], tl.dot(asked, tl.trans(key)) * scale, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        # Of a block in which nothing may be seen.
        base = tl.where(higher == float("-inf"), 0.0, higher)
        chances = tl.exp(scores - base[:, None])
        shrunk = tl.exp(top - base)
        summed = summed * shrunk + tl.sum(chances, 1)
        # What lies behind a row's end may be anything, and nothing times anything is not always nothing.
        value = tl.where(seen[:, None], value, 0.0)
        found = found * shrunk[:, None] + tl.dot(chances.to(value.dtype), value)
        top = higher
    place = row.to(tl.int64) * shared * group + heads
    if is_whole:
        tl.store(
            out + place[:, None] * width + numbers[None, :],
            (found / summed[:, None]).to(out.dtype.element_ty),
            mask=is_member[:, None],
        )
    else:
        place = place * parts + part
        tl.store(out + place[:, None] * width + numbers[None, :], found, mask=is_member[:, None])
        tl.store(most + place, top, mask=is_member)
        tl.store(total + place, summed, mask=is_member)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _put_together(  # type: ignore[no-untyped-def]
    found, most, total, out, parts, width: tl.constexpr, room: tl.constexpr
):
    """The parts of one row and head of queries."""
    place = tl.program_id(0).to(tl.int64)
    each, numbers = tl.arange(0, room), tl.arange(0, width)
    there = each < parts
    tops = tl.load(most + place * parts + each, mask=there, other=float("-inf"))
    weights = tl.exp(tops - tl.max(tops, 0))
    summed = tl.sum(weights * tl.load(total + place * parts + each, mask=there, other=0.0), 0)
    own = (place * parts + each[:, None]) * width + numbers[None, :]
    values = tl.load(found + own, mask=there[:, None], other=0.0)
    answer = tl.sum(values * weights[:, None], 0) / summed
    tl.store(out + place * width + numbers, answer.to(out.dtype.element_ty))


def can_attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether the kernel is made for such tensors."""
    return (
        query.dtype in _DTYPES
        and key.dtype == value.dtype == query.dtype
        and key.shape[3] == value.shape[3] == query.shape[3]
        and query.shape[3] in _WIDTHS
        and query.shape[1] % key.shape[1] == 0
    )


@torch.library.custom_op("flatout::attend_one_token", mutates_args=())
def attend_one_token(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    """Queries as (rows, heads, 1, width), keys and values as (rows, shared heads, places, width), a mask of
    booleans as (rows, 1, 1, places); the answer as (rows, 1, heads, width)."""
    rows, heads, _, width = query.shape
    shared, places = key.shape[1], key.shape[2]
    group = heads // shared
    parts, part_places = _parted(rows * shared, places)
    out = torch.empty(rows, 1, heads, width, dtype=query.dtype, device=query.device)
    found, most, total = out, out, out
    if parts > 1:
        found = torch.empty(rows * heads, parts, width, dtype=torch.float32, device=query.device)
        most = torch.empty(rows * heads, parts, dtype=torch.float32, device=query.device)
        total = torch.empty_like(most)
    if query.stride(3) != 1 or key.stride(3) != 1 or value.stride(3) != 1 or mask.stride(3) != 1:
        query, key, value, mask = (one.contiguous() for one in (query, key, value, mask))
    _look[(rows * shared, parts)](
        query, key, value, mask.view(torch.uint8), found, most, total,
        scale, shared, places, part_places, parts,
        query.stride(0), query.stride(1), key.stride(0), key.stride(1), key.stride(2),
        value.stride(0), value.stride(1), value.stride(2), mask.stride(0),
        group=group, room=max(_FEWEST_ROWS, triton.next_power_of_2(group)), width=width, block=_BLOCK,
        is_whole=parts == 1, num_warps=4, num_stages=2,
    )  # fmt: skip
    if parts > 1:
        _put_together[(rows * heads,)](
            found, most, total, out, parts, width=width, room=triton.next_power_of_2(parts), num_warps=4
        )
    return out


@attend_one_token.register_fake
def _answer_like(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:  # what the compiler asks for shapes
    del key, value, mask, scale
    rows, heads, _, width = query.shape
    return query.new_empty(rows, 1, heads, width)


def _parted(blocks: int, places: int) -> tuple[int, int]:
    """Parts, and places in each."""
    most = max(1, _ENOUGH_BLOCKS // blocks)
    parts = 1 if places <= _WHOLE else min(-(-places // _PART), most)
    in_each = -(-places // (parts * _BLOCK)) * _BLOCK
    return -(-places // in_each), in_each
