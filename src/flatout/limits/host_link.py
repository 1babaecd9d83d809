"""The link between host and device: both directions, from pinned and from pageable memory."""

from collections.abc import Iterator
from typing import Any

from flatout.limits.timing import Stopwatch

# Pageable copies depend on where the buffer's pages happen to lie: several buffers are tried.
_BUFFERS = (64 << 20, 64 << 20, 64 << 20, 256 << 20)


def measure_host_link(torch: Any, device: str, watch: Stopwatch) -> Iterator[tuple[str, float]]:
    """(field, bytes a second); the best of several buffers."""
    best: dict[str, float] = {}
    for size in _BUFFERS:
        there = torch.empty(size, dtype=torch.uint8, device=device)
        pageable = torch.empty(size, dtype=torch.uint8).random_()
        for kind, here in (("pinned", pageable.pin_memory()), ("pageable", pageable)):
            pinned = kind == "pinned"
            for way, source, target in (("h2d", here, there), ("d2h", there, here)):
                timing = watch.measure(
                    lambda s=source, t=target, p=pinned: t.copy_(s, non_blocking=p),  # type: ignore[misc]
                    burst_s=0.02,
                    bursts=5,
                )
                field = f"{way}_{kind}_bytes_per_s"
                best[field] = max(best.get(field, 0.0), size / timing.median_s)
    yield from best.items()
