"""Times sums over all ranks and copies between two of them; runs in every rank, in step with the others.

Whatever depends on a measured time (how often to repeat) is decided from the slowest rank's time, which all
ranks learn: ranks that repeat differently would wait for each other forever.
"""

import dataclasses
import statistics
from collections.abc import Callable, Iterator
from typing import Any

from flatout.hardware.host import available_memory_bytes
from flatout.limits.memory import free_bytes
from flatout.limits.timing import Stopwatch, Timing, summarize
from flatout.records.link import AllReduceRate, PairRate

_MIB = 1 << 20
_GPU_SIZES = (_MIB, 16 * _MIB, 128 * _MIB, 512 * _MIB, 1024 * _MIB)
_CPU_SIZES = (64 << 10, _MIB, 8 * _MIB, 32 * _MIB)
SMALL_BYTES = 4096
_GPU_PAIR_BYTES = 256 * _MIB
_CPU_PAIR_BYTES = 8 * _MIB
# Sums this much smaller than the largest do not fill the link, or fit into a cache.
LARGE_SHARE = 1 / 8
# A rank's buffer may take this part of what is free; backends hold buffers of their own beside it.
_SHARE_OF_FREE = 8
_FLOAT_BYTES = 4
_MOST_REPEATS = 200
# Beyond so many ranks, pairs are neighbours alone: all of them would take minutes.
MOST_RANKS_ALL_PAIRS = 16


@dataclasses.dataclass(frozen=True)
class _Bursts:
    count: int
    seconds: float


_LARGE = _Bursts(count=5, seconds=0.05)
_SMALL = _Bursts(count=11, seconds=0.01)
_PAIR = _Bursts(count=3, seconds=0.02)


class WrongSum(Exception):
    """The ranks' sum is not the sum: its speed means nothing."""


class Ranks:
    """One rank's side of the measurements; every method is called by all ranks, in the same order."""

    def __init__(self, torch: Any, device: str) -> None:
        self._torch = torch
        self._dist = torch.distributed
        self._device = device
        self._watch = Stopwatch(torch, device)
        self.rank: int = self._dist.get_rank()
        self.count: int = self._dist.get_world_size()
        self._room = self._smallest_room()

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sums to time: as large as the rank with the least free memory allows."""
        wanted = _CPU_SIZES if self._watch.on_cpu else _GPU_SIZES
        return tuple(size for size in wanted if size <= self._room) or wanted[:1]

    def pairs(self) -> list[tuple[int, int]]:
        """(from, to): all there are, or each rank's way to the next where they are too many."""
        every = range(self.count)
        if self.count > MOST_RANKS_ALL_PAIRS:
            return [(rank, (rank + 1) % self.count) for rank in every]
        return [(source, target) for source in every for target in every if source != target]

    def check_sum(self) -> None:
        """Before speed: is a sum over all ranks right?"""
        ones = self._buffer(SMALL_BYTES).fill_(1.0)
        self._dist.all_reduce(ones)
        if not bool((ones == self.count).all()):
            raise WrongSum(f"a sum of ones over {self.count} ranks gave {float(ones.min()):g}")

    def small_seconds(self) -> float:
        """Seconds that a sum of a few numbers takes: the lower quartile, as for the host's other costs."""
        data = self._buffer(SMALL_BYTES)
        taken = self._bursts(lambda: self._dist.all_reduce(data), _SMALL)
        return statistics.quantiles(taken, n=4)[0]

    def all_reduce(self, size: int) -> AllReduceRate:
        """Sums of `size` bytes."""
        # Positive, so that repeated sums grow to infinity and never to not-a-number.
        data = self._buffer(size).uniform_(0.5, 1.0)
        timing: Timing = summarize(self._bursts(lambda: self._dist.all_reduce(data), _LARGE))
        return AllReduceRate(
            message_bytes=size,
            seconds=timing.median_s,
            bus_bytes_per_s=bus_rate(size, timing.median_s, self.count),
            spread_share=timing.spread_share,
        )

    def copies(self) -> Iterator[PairRate]:
        """Each pair alone, one way at a time."""
        size = min(_CPU_PAIR_BYTES if self._watch.on_cpu else _GPU_PAIR_BYTES, max(self.sizes))
        data = self._buffer(size).uniform_(0.5, 1.0)
        for source, target in self.pairs():
            taken = self._bursts(self._copy(data, source, target), _PAIR)
            yield PairRate(source=source, target=target, bytes_per_s=size / statistics.median(taken))

    def _copy(self, data: Any, source: int, target: int) -> Callable[[], object] | None:
        if self.rank not in (source, target):
            return None
        dist = self._dist
        way, peer = (dist.isend, target) if self.rank == source else (dist.irecv, source)

        def call() -> None:
            # In a batch, NCCL takes the ways that the sums have opened, instead of a group for each pair.
            for work in dist.batch_isend_irecv([dist.P2POp(way, data, peer)]):
                work.wait()

        return call

    def _bursts(self, call: Callable[[], object] | None, plan: _Bursts) -> list[float]:
        """Seconds a call, of the slowest rank, for each burst; a rank without a call keeps step."""
        self._slowest(self._burst(call, 1))
        once_s = max(self._slowest(self._burst(call, 1)), 1e-7)
        repeats = int(min(_MOST_REPEATS, max(1, plan.seconds / once_s)))
        return [self._slowest(self._burst(call, repeats)) for _ in range(plan.count)]

    def _burst(self, call: Callable[[], object] | None, repeats: int) -> float:
        return self._watch.burst(call, repeats, lead=1) if call is not None else 0.0

    def _slowest(self, seconds: float) -> float:
        """What the slowest rank took. Waiting for it also keeps ranks in step."""
        return self._over_all(seconds, self._dist.ReduceOp.MAX)

    def _smallest_room(self) -> int:
        if self._watch.on_cpu:
            free = available_memory_bytes() // self.count
        else:
            free = free_bytes(self._torch, self._device)
        return int(self._over_all(float(free // _SHARE_OF_FREE), self._dist.ReduceOp.MIN))

    def _over_all(self, value: float, how: Any) -> float:
        data = self._torch.tensor([value], dtype=self._torch.float64, device=self._device)
        self._dist.all_reduce(data, op=how)
        return float(data.item())

    def _buffer(self, size: int) -> Any:
        return self._torch.empty(size // _FLOAT_BYTES, dtype=self._torch.float32, device=self._device)


def bus_rate(size: int, seconds: float, ranks: int) -> float:
    """What each rank sends of a sum, by the second: on a ring, all but its own part, twice."""
    return 2 * (ranks - 1) / ranks * size / seconds


def best_of_large(sizes: tuple[AllReduceRate, ...]) -> float | None:
    """The best rate among sums that are large enough to fill the link."""
    if not sizes:
        return None
    least = max(size.message_bytes for size in sizes) * LARGE_SHARE
    return max(size.bus_bytes_per_s for size in sizes if size.message_bytes >= least)
