"""Which kernel attends faster with a cache as it is: tried on the device, as no table knows."""

import math
from collections.abc import Callable
from typing import Any

import torch

from flatout.infer.capturing import capturing
from flatout.infer.generating.attention import KERNEL, TOGETHER, by_kernel, by_torch, has_kernel
from flatout.infer.generating.cache import RowCache

_CALLS, _TURNS, _WARM_UPS = 16, 3, 2
# Of the answer's size: both round, in another order.
_APART = 2e-2

Attend = Callable[..., torch.Tensor]


@torch.no_grad()
def faster_attention(model: Any, cache: RowCache) -> str:
    """The name of the way to attend, for a cache that holds nothing yet."""
    heads = getattr(model.config.get_text_config(), "num_attention_heads", 0)
    keys, values = cache.keys[:_CALLS], cache.values[:_CALLS]
    rows, shared, room, width = keys[0].shape
    if not heads or heads % shared or len({one.shape for one in (*cache.keys, *cache.values)}) > 1:
        return TOGETHER
    query = keys[0].new_empty(rows, heads, 1, width).normal_()
    if not has_kernel(query, keys[0], values[0]):
        return TOGETHER
    places = room - 1
    mask = torch.ones(rows, 1, 1, places, dtype=torch.bool, device=query.device)
    given = [
        (query, key[:, :, :places], value[:, :, :places], mask, None)
        for key, value in zip(keys, values, strict=True)
    ]
    try:
        for one in (*keys, *values):
            one.normal_()
        theirs, ours = by_torch(*given[0]).float(), by_kernel(*given[0]).float()
        if not float((theirs - ours).norm()) <= _APART * float(theirs.norm()):
            return TOGETHER
        own_ms = _milliseconds(by_kernel, given)
        return KERNEL if own_ms < _milliseconds_if_any(by_torch, given) else TOGETHER
    except Exception:  # noqa: BLE001 - what does not run here is not taken
        return TOGETHER
    finally:
        for one in (*keys, *values):
            one.zero_()


def _milliseconds_if_any(attend: Attend, given: list[tuple[Any, ...]]) -> float:
    try:
        return _milliseconds(attend, given)
    except Exception:  # noqa: BLE001 - some of torch's kernels cannot be captured
        return math.inf


def _milliseconds(attend: Attend, given: list[tuple[Any, ...]]) -> float:
    """Of the kernels alone, one layer after the other, as a step has them."""
    aside, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(_WARM_UPS):
            attend(*given[0])
    torch.cuda.current_stream().wait_stream(aside)
    with capturing(graph, given[0][0].device, torch.cuda.graph_pool_handle()):
        for number in range(_CALLS):
            attend(*given[number % len(given)])
    graph.replay()
    taken = []
    for _ in range(_TURNS):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        began.record()
        graph.replay()
        ended.record()
        ended.synchronize()
        taken.append(float(began.elapsed_time(ended)))
    return min(taken)
