"""Memory bandwidth: copy, read and triad, with every byte counted that moves, beyond any cache."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from flatout.limits.timing import Stopwatch

_GPU_BUFFER_BYTES = 4 << 30
_CPU_BUFFER_BYTES = 256 << 20
_TIMES_THE_CACHE = 4
_SHARE_OF_FREE = 8
_FLOAT_BYTES = 4
_NOISE_BLOCK = 1 << 20


def buffer_bytes(torch: Any, device: str) -> int:
    """How large each of three buffers is: well beyond the cache, and a small part of what is free."""
    if device == "cpu":
        import psutil

        wanted = max(_CPU_BUFFER_BYTES, _TIMES_THE_CACHE * cpu_cache_bytes())
        return min(wanted, psutil.virtual_memory().available // _SHARE_OF_FREE)
    return min(_GPU_BUFFER_BYTES, free_bytes(torch, device) // _SHARE_OF_FREE)


def free_bytes(torch: Any, device: str) -> int:
    """Free memory on the device, as torch sees it."""
    kind = device.split(":", maxsplit=1)[0]
    if kind == "mps":
        return int(torch.mps.recommended_max_memory()) - int(torch.mps.driver_allocated_memory())
    return int(getattr(torch, kind).mem_get_info(device)[0])


def cpu_cache_bytes(root: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """The largest cache of the first CPU; 0 where the system does not tell."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    largest = 0
    for file in root.glob("index*/size"):
        with contextlib.suppress(OSError, ValueError):
            text = file.read_text().strip()
            largest = max(largest, int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text))
    return largest


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
