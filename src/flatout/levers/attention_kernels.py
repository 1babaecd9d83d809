"""How long each of torch's attention kernels takes for a job's own shape, in the job's own process."""

import contextlib
import importlib
import statistics
from collections.abc import Sequence
from typing import Any

BACKENDS = {"cudnn": "CUDNN_ATTENTION", "flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION"}
# As torch chooses by its own rules.
OWN_CHOICE = "torch's choice"
_WARM_UP, _ROUNDS, _REPLAYS = 3, 5, 5


def time_kernels(torch: Any, device: Any, shape: Sequence[int], dtype: Any) -> dict[str, float]:
    """Milliseconds of forward and backward by kernel, taken by turns; those that cannot do it are left out.

    `shape`: batch, heads, queries, keys, and the width of a head. Random numbers are left as they were.
    """
    with torch.cuda.device(device):  # graphs and events are of the current one
        return _time(torch, device, shape, dtype)


def _time(torch: Any, device: Any, shape: Sequence[int], dtype: Any) -> dict[str, float]:
    batch, heads, queries, keys, width = shape
    attention: Any = importlib.import_module("torch.nn.attention")
    generator = torch.Generator(device)

    def made(length: int) -> Any:
        tensor = torch.randn(batch, heads, length, width, device=device, dtype=dtype, generator=generator)
        return tensor.requires_grad_()

    q, k, v = made(queries), made(keys), made(keys)
    gradient = torch.ones_like(q)
    contexts = {OWN_CHOICE: contextlib.nullcontext} | {
        name: lambda kernel=getattr(attention.SDPBackend, value): attention.sdpa_kernel(kernel)
        for name, value in BACKENDS.items()
        if hasattr(attention.SDPBackend, value)
    }

    def compute() -> None:
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=queries == keys)
        torch.autograd.grad(out, (q, k, v), gradient)

    def captured(context: Any) -> Any:
        """As a graph: launches from Python would take longer than small kernels."""
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(device)
        with context(), torch.enable_grad():
            stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(stream):
                for _ in range(_WARM_UP):
                    compute()
            # A loader that pins batches in a thread of its own must not spoil the capture.
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                compute()
        graph.replay()
        return graph

    def once(graph: Any) -> float:
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        for _ in range(_REPLAYS):
            graph.replay()
        ended.record()
        ended.synchronize()
        return float(began.elapsed_time(ended)) / _REPLAYS

    graphs: dict[str, Any] = {}
    for name, context in contexts.items():
        with contextlib.suppress(RuntimeError):  # no kernel of this kind for this shape, dtype or card
            graphs[name] = captured(context)
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(_ROUNDS):
        for name, graph in graphs.items():
            times[name].append(once(graph))
    return {name: statistics.median(taken) for name, taken in times.items()}
