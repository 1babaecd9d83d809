"""The norm of all gradients, wherever they lie: spread over ranks, whole on each, or on several devices."""

from typing import Any

from flatout.runtime.checkpoint.sharding import is_sharded
from flatout.runtime.parallel.saving import named_now
from flatout.runtime.parallel.wrapped import Wrapped


def clip(wrapped: Wrapped, most: float) -> Any:
    """Scale gradients so that their norm is at most `most`; the norm before, on all ranks alike.

    `torch.nn.utils.clip_grad_norm_` counts what this rank holds, and refuses a mixture of both kinds.
    """
    import torch

    gradients = [one.grad for one in named_now(wrapped).values() if one.grad is not None]
    shared = wrapped.held_by()
    device = wrapped.joined.device
    in_parts = torch.zeros((), dtype=torch.float64, device=device)
    on_each = torch.zeros((), dtype=torch.float64, device=device)
    for name, one in named_now(wrapped).items():
        if one.grad is None:
            continue
        local = one.grad.to_local() if is_sharded(one.grad) else one.grad
        square = local.detach().double().pow(2).sum().to(device)
        if wrapped.spread_by_name or _is_divided(one.grad):
            in_parts += square / shared.get(name, 1)
        else:
            on_each += square
    norm = (_summed(in_parts, wrapped) + on_each).sqrt()
    scale = torch.clamp(most / (norm + 1e-6), max=1.0)
    for gradient in gradients:
        local = gradient.to_local() if is_sharded(gradient) else gradient
        local.mul_(scale.to(local.device, local.dtype))
    return norm


def _is_divided(gradient: Any) -> bool:
    return is_sharded(gradient) and not all(one.is_replicate() for one in gradient.placements)


def _summed(part: Any, wrapped: Wrapped) -> Any:
    import torch.distributed as dist

    if wrapped.joined.count > 1:
        dist.all_reduce(part)
    return part
