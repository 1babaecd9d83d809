"""Measures each rung of the memory ladder: by size, by order of access, and the disk."""

import contextlib
import dataclasses
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from flatout.hardware.host import available_memory_bytes
from flatout.learn.bench import Bench
from flatout.limits.memory import cpu_cache_bytes, device_cache_bytes, free_bytes

_FLOAT_BYTES = 4
_SMALLEST_CPU, _SMALLEST_GPU = 8 << 10, 1 << 20
_LARGEST_CPU, _LARGEST_GPU = 256 << 20, 2 << 30
_TIMES_THE_CACHE = 8
_SHARE_OF_FREE = 8
# What one timed call reads in all, so that small sizes are not lost in what a call costs.
_READ_CPU = 64 << 20
_NODES = 100
_GATHERED, _MOST_GATHERED = 1 << 22, 1 << 24
_DISK_BYTES = 64 << 20
_SYS = Path("/sys/devices/system/cpu/cpu0/cache")


@dataclasses.dataclass(frozen=True)
class Cache:
    """A cache, as the system tells of it."""

    name: str
    size_bytes: int


@dataclasses.dataclass(frozen=True)
class SizePoint:
    """So many bytes, read again and again."""

    size_bytes: int
    bytes_per_s: float


def caches_of(bench: Bench, root: Path = _SYS) -> tuple[Cache, ...]:
    """The device's caches, near to far; none where nobody tells."""
    if not bench.on_cpu:
        size = device_cache_bytes(bench.torch, bench.device)
        return (Cache("the L2 cache", size),) if size else ()
    found: dict[int, int] = {}
    for index in root.glob("index*"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            if (index / "type").read_text().strip() != "Instruction":
                text = (index / "size").read_text().strip()
                size = int(text[:-1]) * {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[text[-1]]
                found[int((index / "level").read_text())] = size
    return tuple(Cache(f"the L{level} cache", size) for level, size in sorted(found.items()))


def sweep(bench: Bench, caches: tuple[Cache, ...]) -> Iterator[SizePoint]:
    """Rates from small to large, doubling; far beyond the last cache where memory allows."""
    last = max((cache.size_bytes for cache in caches), default=0)
    if bench.on_cpu:
        smallest, largest, free = _SMALLEST_CPU, _LARGEST_CPU, available_memory_bytes()
    else:
        smallest, largest, free = _SMALLEST_GPU, _LARGEST_GPU, free_bytes(bench.torch, bench.device)
    end = min(max(largest, 4 * last), _TIMES_THE_CACHE * last or largest, free // _SHARE_OF_FREE)
    read = _read_on_cpu if bench.on_cpu else _read_on_gpu
    size = smallest
    while size <= max(end, smallest):
        bench.say(f"{size >> 10} KiB" if size < 1 << 20 else f"{size >> 20} MiB")
        yield SizePoint(size, read(bench, size))
        size *= 2


def _read_on_cpu(bench: Bench, size: int) -> float:
    """One core sums the buffer up, over and over in one call: what a call costs does not show."""
    torch = bench.torch
    times = max(1, _READ_CPU // size)
    again = torch.ones(size // _FLOAT_BYTES).expand(times, -1)
    sums = torch.empty(times)
    with bench.one_core():
        return size * times / bench.seconds(lambda: torch.sum(again, dim=1, out=sums), at_most_s=0.2)


def _read_on_gpu(bench: Bench, size: int) -> float:
    """Scale a buffer in place, which reads and writes it; as a recorded graph, as launches would show."""
    buffer = bench.torch.ones(size // _FLOAT_BYTES, device=bench.device)
    call: Callable[[], object] = partial(buffer.mul_, 1.0)
    nodes = 1
    if bench.on_cuda:
        with contextlib.suppress(RuntimeError):  # no graphs here: small sizes then show the launch instead
            call, nodes = _recorded(bench.torch, buffer), _NODES
    return 2 * size * nodes / bench.seconds(call)


def _recorded(torch: Any, buffer: Any) -> Callable[[], object]:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        buffer.mul_(1.0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_NODES):
            buffer.mul_(1.0)
    replay: Callable[[], object] = graph.replay
    return replay


def in_order_and_shuffled(bench: Bench) -> tuple[float, float]:
    """Bytes a second of fetching single numbers from a large buffer: one after the other, and shuffled."""
    torch, device = bench.torch, bench.device
    beyond = 4 * (cpu_cache_bytes() if bench.on_cpu else device_cache_bytes(torch, device))
    free = available_memory_bytes() if bench.on_cpu else free_bytes(torch, device)
    count = min(max(_GATHERED, beyond // _FLOAT_BYTES), _MOST_GATHERED, free // 64)
    numbers, out = torch.ones(count, device=device), torch.empty(count, device=device)
    rates = []
    for order in (torch.arange(count, device=device), torch.randperm(count, device=device)):
        call: Callable[[], object] = partial(torch.index_select, numbers, 0, order, out=out)
        with bench.one_core():
            rates.append(_FLOAT_BYTES * count / bench.seconds(call))
    return rates[0], rates[1]


def disk_write_bytes_per_s(folder: Path) -> float | None:
    """How fast a file gets onto the disk of a folder; None where it cannot be written."""
    data = os.urandom(1 << 20) * (_DISK_BYTES >> 20)
    taken = []
    try:
        for _ in range(3):
            with tempfile.TemporaryFile(dir=folder) as file:
                started = time.perf_counter()
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                taken.append(time.perf_counter() - started)
    except OSError:
        return None
    return _DISK_BYTES / statistics.median(taken)


def core_bandwidth(bench: Bench) -> float:
    """What one core gets out of main memory, beyond the caches: the better of reading and of adding up."""
    torch = bench.torch
    size = min(max(_LARGEST_CPU, 4 * cpu_cache_bytes()), available_memory_bytes() // _SHARE_OF_FREE)
    first, second, out = (torch.ones(size // _FLOAT_BYTES) for _ in range(3))
    with bench.one_core():
        read = size / bench.seconds(first.sum)
        triad = 3 * size / bench.seconds(lambda: torch.add(first, second, out=out))
    return float(max(read, triad))
