"""How long each of torch's attention kernels takes for a job's own shape, in the job's own process."""

import contextlib
import importlib
import statistics
from collections.abc import Sequence
from typing import Any

BACKENDS = {"cudnn": "CUDNN_ATTENTION", "flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION"}
# As torch chooses by its own rules.
OWN_CHOICE = "torch's choice"
_WARM_UP, _ROUNDS = 3, 7


def time_kernels(torch: Any, device: Any, shape: Sequence[int], dtype: Any) -> dict[str, float]:
    """Milliseconds of forward and backward by kernel, taken by turns; those that cannot do it are left out.

    `shape`: batch, heads, queries, keys, and the width of a head. Random numbers are left as they were.
    """
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

    def once(context: Any) -> float:
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with context(), torch.enable_grad():
            began.record()
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=queries == keys)
            torch.autograd.grad(out, (q, k, v), gradient)
            ended.record()
        ended.synchronize()
        return float(began.elapsed_time(ended))

    times: dict[str, list[float]] = {}
    for name, context in contexts.items():
        with contextlib.suppress(RuntimeError):  # no kernel of this kind for this shape, dtype or card
            for _ in range(_WARM_UP):
                once(context)
            times[name] = []
    for _ in range(_ROUNDS):
        for name, taken in times.items():
            taken.append(once(contexts[name]))
    return {name: statistics.median(taken) for name, taken in times.items()}
