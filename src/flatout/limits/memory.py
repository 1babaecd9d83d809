"""Memory bandwidth: copy, read and triad, with every byte counted that moves, beyond any cache."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from flatout.hardware.host import available_memory_bytes
from flatout.limits.timing import Stopwatch

_GPU_BUFFER_BYTES = 4 << 30
_CPU_BUFFER_BYTES = 256 << 20
_TIMES_THE_CACHE = 4
_SHARE_OF_FREE = 8
_LEAST_TIMES_THE_CACHE = 2
_SMALLEST_BYTES = 16 << 20
_FLOAT_BYTES = 4
_NOISE_BLOCK = 1 << 20


def buffer_bytes(torch: Any, device: str) -> int:
    """How large each of three buffers is: well beyond the cache, and a small part of what is free."""
    if device == "cpu":
        cache, wanted, free = cpu_cache_bytes(), _CPU_BUFFER_BYTES, available_memory_bytes()
    else:
        cache, wanted, free = device_cache_bytes(torch, device), _GPU_BUFFER_BYTES, free_bytes(torch, device)
    size = min(max(wanted, _TIMES_THE_CACHE * cache), free // _SHARE_OF_FREE)
    if size < _LEAST_TIMES_THE_CACHE * cache or size < _SMALLEST_BYTES:
        raise RuntimeError(f"too little memory is free ({free >> 20} MiB) to measure beyond the cache")
    return size


def device_cache_bytes(torch: Any, device: str) -> int:
    """The device's second-level cache, where torch tells it; 0 elsewhere."""
    kind = device.split(":", maxsplit=1)[0]
    if kind == "mps":
        return 0
    properties = getattr(torch, kind).get_device_properties(device)
    return int(getattr(properties, "L2_cache_size", 0))


def free_bytes(torch: Any, device: str) -> int:
    """Free memory on the device, as torch sees it."""
    kind = device.split(":", maxsplit=1)[0]
    if kind == "mps":
        return int(torch.mps.recommended_max_memory()) - int(torch.mps.driver_allocated_memory())
    return int(getattr(torch, kind).mem_get_info(device)[0])


def cpu_cache_bytes(root: Path = Path("/sys/devices/system/cpu")) -> int:
    """All last-level caches together (a large server has a dozen); 0 where the system does not tell."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    caches: dict[tuple[str, str], int] = {}
    for file in root.glob("cpu[0-9]*/cache/index*/size"):
        with contextlib.suppress(OSError, ValueError):
            text = file.read_text().strip()
            size = int(text[:-1]) * units[text[-1]] if text[-1:] in units else int(text)
            sharers = (file.parent / "shared_cpu_list").read_text().strip()
            caches[file.parent.name, sharers] = size
    levels: dict[str, int] = {}
    for (level, _), size in caches.items():
        levels[level] = levels.get(level, 0) + size
    return max(levels.values(), default=0)


def _noise(torch: Any, device: str, count: int) -> Any:
    """Random floats. A block is repeated: drawing gigabytes would take longer than measuring with them."""
    block = torch.randn(min(count, _NOISE_BLOCK), device=device)
    buffer = torch.empty(count, device=device)
    whole = count // block.numel() * block.numel()
    buffer[:whole].view(-1, block.numel()).copy_(block)
    buffer[whole:].copy_(block[: count - whole])
    return buffer


def measure_memory(torch: Any, device: str, watch: Stopwatch) -> Iterator[tuple[str, float]]:
    """(field, bytes a second) of copy, read and triad."""
    count = buffer_bytes(torch, device) // _FLOAT_BYTES
    first, second, out = (_noise(torch, device, count) for _ in range(3))
    patterns: tuple[tuple[str, int, Callable[[], object]], ...] = (
        ("memory_copy_bytes_per_s", 2, lambda: out.copy_(first)),  # one read, one write
        ("memory_read_bytes_per_s", 1, first.sum),
        ("memory_triad_bytes_per_s", 3, lambda: torch.add(first, second, alpha=3.0, out=out)),
    )
    for field, streams, call in patterns:
        timing = watch.measure(call, burst_s=0.15 if watch.on_cpu else 0.03, bursts=7)
        yield field, streams * count * _FLOAT_BYTES / timing.median_s
