"""What the host pays: launching one small kernel, reading one number back, replaying a recorded graph.

Other work on the host only ever adds to these, so the lower quartile of the rounds is taken, not the median.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

from flatout.limits.timing import Stopwatch

_ROUNDS = 41
_LAUNCHES = 1000
_ITEMS = 200


def launch_seconds(torch: Any, device: str, watch: Stopwatch) -> float:
    """Seconds per launch of the smallest kernel, eager, with the queue kept full."""
    one = torch.zeros(1, device=device)
    return _per_call(watch, lambda: one.add_(1), _LAUNCHES)


def item_seconds(torch: Any, device: str, watch: Stopwatch) -> float:
    """Seconds for `.item()` on an idle device: the floor of every synchronization."""
    one = torch.zeros(1, device=device)
    return _per_call(watch, one.item, _ITEMS)


def graph_node_seconds(torch: Any, device: str, watch: Stopwatch) -> float:
    """Seconds per kernel when a CUDA graph of a thousand small kernels is replayed."""
    one = torch.zeros(1, device=device)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        one.add_(1)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_LAUNCHES):
            one.add_(1)
    timing = watch.measure(graph.replay, burst_s=0.005, bursts=7)
    return timing.median_s / _LAUNCHES


def _per_call(watch: Stopwatch, call: Callable[[], object], count: int) -> float:
    taken = []
    for _ in range(_ROUNDS):
        watch.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            call()
        watch.synchronize()
        taken.append((time.perf_counter() - start) / count)
    return statistics.quantiles(taken, n=4)[0]
