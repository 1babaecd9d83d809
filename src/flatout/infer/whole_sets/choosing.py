"""The batch size for a data set, by running a few: as small as is nearly as fast as any."""

import time
from collections.abc import Callable
from typing import Any

import torch

from flatout.infer.whole_sets.computing import Computing, no_room
from flatout.inside.out_of_memory import is_out_of_memory
from flatout.memory.batch_search import Search, TriedSize

_FIRST, _MOST = 8, 1024
_CALLS = 3
# Of the memory; batches are not all alike.
_SHARE = 0.8


def best_size(computing: Computing, make_batch: Callable[[int], Any], device: torch.device, most: int) -> int:
    """The size at the knee of throughput."""
    limit = None
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        limit = _SHARE * (free + torch.cuda.memory_reserved(device))

    def run(size: int) -> TriedSize:
        try:
            return _tried(computing, make_batch(size), size, device, limit)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        if size == 1:
            raise no_room()
        return TriedSize(size, None, None, fits=False)

    return Search(run, limit_bytes=limit, most=min(most, _MOST), first=_FIRST).find().size


def _tried(
    computing: Computing, batch: Any, size: int, device: torch.device, limit: float | None
) -> TriedSize:
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()  # what an earlier size, or the program before, has left is not of this one
        torch.cuda.reset_peak_memory_stats(device)
    computing.whole(batch)
    taken = []
    for _ in range(_CALLS):
        if on_gpu:
            torch.cuda.synchronize(device)
        began = time.perf_counter()
        computing.whole(batch)
        if on_gpu:
            torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - began)
    peak = torch.cuda.max_memory_reserved(device) if on_gpu else None
    fits = peak is None or limit is None or peak <= limit
    return TriedSize(size, size / min(taken), peak, fits=fits)
