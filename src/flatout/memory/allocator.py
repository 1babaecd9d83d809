"""A model of torch's caching allocator for CUDA: what a sequence of requests and releases makes it reserve.

Requests are rounded up, served from the smallest free block that is large enough, and split where enough is
left over. Small ones share segments of 2 MiB, middling ones of 20 MiB, large ones have their own. Segments
are given back to the driver only where it has nothing left. With expandable segments each pool is one long
segment, that grows by pages and shrinks by none.
"""

import bisect
import dataclasses

MIB = 1 << 20

_ROUND = 512
_SMALL = MIB
_SMALL_SEGMENT = 2 * MIB
_LARGE_SEGMENT = 20 * MIB
_OWN_SEGMENT = 10 * MIB
_ROUND_SEGMENT = 2 * MIB


class OutOfMemory(Exception):
    """A request that could not be served, whatever was given back."""

    def __init__(self, asked_bytes: int, reserved_bytes: int, allocated_bytes: int) -> None:
        super().__init__(f"{asked_bytes} bytes were asked for, of which the device has none left")
        self.asked_bytes = asked_bytes
        self.reserved_bytes = reserved_bytes
        self.allocated_bytes = allocated_bytes


@dataclasses.dataclass(frozen=True)
class Block:
    """A piece of a segment, held or free; addresses are below 0, where the driver began."""

    address: int
    size: int


@dataclasses.dataclass(frozen=True)
class Segment:
    """What was reserved at once, and how it is split."""

    address: int
    size: int
    is_small: bool
    blocks: tuple[Block, ...]


@dataclasses.dataclass(eq=False, slots=True)
class _Block:
    pool: "_Pool"
    address: int
    size: int
    is_free: bool = False
    # Neighbours in the same segment.
    before: "_Block | None" = None
    after: "_Block | None" = None

    @property
    def is_whole(self) -> bool:
        """Whether it is all of its segment."""
        return self.before is None and self.after is None


@dataclasses.dataclass(eq=False, slots=True)
class _Pool:
    """Segments of one kind; what is free in them by size, then by address."""

    is_small: bool
    free: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    blocks: dict[int, _Block] = dataclasses.field(default_factory=dict)
    # Where segments expand: the last block of the one there is.
    last: _Block | None = None

    def put(self, block: _Block) -> None:
        block.is_free = True
        self.blocks[block.address] = block
        bisect.insort(self.free, (block.size, block.address))

    def take(self, block: _Block) -> None:
        block.is_free = False
        del self.blocks[block.address]
        del self.free[bisect.bisect_left(self.free, (block.size, block.address))]

    def smallest(self, size: int) -> _Block | None:
        """The free block that fits best; of equal ones the first."""
        place = bisect.bisect_left(self.free, (size,))
        return self.blocks[self.free[place][1]] if place < len(self.free) else None


class CachingAllocator:
    """One device's allocator, with as much memory as `room_bytes`; None for as much as it takes."""

    def __init__(self, *, room_bytes: int | None = None, expandable: bool = False) -> None:
        self._room_bytes = room_bytes
        self._expandable = expandable
        self._small, self._large = _Pool(is_small=True), _Pool(is_small=False)
        self._held: dict[int, _Block] = {}
        # Where segments do not expand: the first block of each, by address.
        self._first: dict[int, _Block] = {}
        self._lowest_address = 0
        self._next_handle = 0
        self.allocated_bytes = 0
        self.reserved_bytes = 0
        self.peak_allocated_bytes = 0
        self.peak_reserved_bytes = 0

    def allocate(self, size: int) -> int:
        """Serve a request; a handle for its release. Raises OutOfMemory."""
        size = rounded(size)
        pool = self._small if size <= _SMALL else self._large
        block = pool.smallest(size)
        if block is None:
            block = self._more(pool, size)
        pool.take(block)
        self._split(block, size)
        self.allocated_bytes += block.size
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        self._next_handle += 1
        self._held[self._next_handle] = block
        return self._next_handle

    def release(self, handle: int) -> None:
        """Give a block back; what is free beside it becomes one with it."""
        block = self._held.pop(handle)
        self.allocated_bytes -= block.size
        pool = block.pool
        before, after = block.before, block.after
        if before is not None and before.is_free:
            pool.take(before)
            self._join(before, block)
            block = before
        if after is not None and after.is_free:
            pool.take(after)
            self._join(block, after)
        pool.put(block)

    def give_back(self) -> None:
        """What `empty_cache` does: segments of which nothing is in use go back to the driver."""
        for pool in (self._small, self._large):
            for block in list(pool.blocks.values()):
                if self._expandable:
                    self._shrink(pool, block)
                elif block.is_whole:
                    pool.take(block)
                    del self._first[block.address]
                    self.reserved_bytes -= block.size

    def address_of(self, handle: int) -> int:
        """Where the block lies that serves a request."""
        return self._held[handle].address

    def segments(self) -> list[Segment]:
        """All that is reserved, the latest first; not for segments that expand."""
        return [self._segment(self._first[address]) for address in sorted(self._first)]

    # Segments

    def _segment(self, first: _Block) -> Segment:
        blocks = []
        block: _Block | None = first
        while block is not None:
            blocks.append(Block(block.address, block.size))
            block = block.after
        size = sum(block.size for block in blocks)
        return Segment(first.address, size, first.pool.is_small, tuple(blocks))

    def _more(self, pool: _Pool, size: int) -> _Block:
        """Reserve what the request needs; where there is no room, after giving back what is unused."""
        for attempt in range(2):
            needed = self._to_reserve(pool, size)
            if self._room_bytes is None or self.reserved_bytes + needed <= self._room_bytes:
                self.reserved_bytes += needed
                self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
                return self._reserved(pool, needed)
            if attempt == 0:
                self.give_back()
        raise OutOfMemory(size, self.reserved_bytes, self.allocated_bytes)

    def _to_reserve(self, pool: _Pool, size: int) -> int:
        if not self._expandable:
            return segment_size(size)
        page = _SMALL_SEGMENT if pool.is_small else _LARGE_SEGMENT
        at_the_end = pool.last.size if pool.last is not None and pool.last.is_free else 0
        return -(-(size - at_the_end) // page) * page

    def _reserved(self, pool: _Pool, needed: int) -> _Block:
        # CUDA places one segment below the other: of equal blocks, those of the latest segment come first.
        self._lowest_address -= needed
        block = _Block(pool, self._lowest_address, needed)
        last = pool.last
        if not self._expandable:
            self._first[block.address] = block
        else:
            pool.last = block
            if last is not None:
                last.after, block.before = block, last
                if last.is_free:
                    pool.take(last)
                    self._join(last, block)
                    block = last
        pool.put(block)
        return block

    def _shrink(self, pool: _Pool, block: _Block) -> None:
        """Whole pages of a free block are unmapped; its place in the segment is lost to us, not its size."""
        page = _SMALL_SEGMENT if pool.is_small else _LARGE_SEGMENT
        unmapped = block.size // page * page
        if not unmapped:
            return
        self.reserved_bytes -= unmapped
        pool.take(block)
        if block.size > unmapped:
            block.size -= unmapped
            pool.put(block)
            return
        if block.before is not None:
            block.before.after = block.after
        if block.after is not None:
            block.after.before = block.before
        if pool.last is block:
            pool.last = block.before

    # Blocks

    def _split(self, block: _Block, size: int) -> None:
        left_over = block.size - size
        splits = left_over >= _ROUND if block.pool.is_small or self._expandable else left_over > _SMALL
        if not splits:
            return
        rest = _Block(block.pool, block.address + size, left_over, before=block, after=block.after)
        if block.after is not None:
            block.after.before = rest
        block.after, block.size = rest, size
        if block.pool.last is block:
            block.pool.last = rest
        block.pool.put(rest)

    def _join(self, block: _Block, after: _Block) -> None:
        block.size += after.size
        block.after = after.after
        if after.after is not None:
            after.after.before = block
        if block.pool.last is after:
            block.pool.last = block


def rounded(size: int) -> int:
    """What a request takes."""
    return max(_ROUND, -(-size // _ROUND) * _ROUND)


def segment_size(size: int) -> int:
    """What is reserved for a request, already rounded, where no free block serves it."""
    if size <= _SMALL:
        return _SMALL_SEGMENT
    if size < _OWN_SEGMENT:
        return _LARGE_SEGMENT
    return -(-size // _ROUND_SEGMENT) * _ROUND_SEGMENT
