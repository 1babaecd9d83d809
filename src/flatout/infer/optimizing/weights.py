"""Twins of a module with other weights: cast, laid out otherwise, quantized; the module stays as it is."""

import copy
from typing import Any

import torch

from flatout.infer.optimizing.ways import QUANTIZED, Way
from flatout.records.errors import MissingExtra

_GROUP = 128


def needs_twin(way: Way) -> bool:
    """Whether the module's own weights are not what this way works with."""
    return way.dtype is not None or way.channels_last


@torch.no_grad()
def twin(module: torch.nn.Module, way: Way) -> torch.nn.Module:
    """A copy whose weights are cast or moved on the way: the module's own are never held twice."""
    known: dict[int, Any] = {}
    for one in (*module.parameters(), *module.buffers()):
        known.setdefault(id(one), _other(one, way))
    made: torch.nn.Module = copy.deepcopy(module, known)
    if way.precision in QUANTIZED:
        _quantize(made, way.precision)
    return made


def _other(one: torch.Tensor, way: Way) -> Any:
    values = one.detach()
    casts = way.dtype is not None and values.is_floating_point()
    last = way.channels_last and values.dim() == 4
    if not casts and not last:
        return one  # shared: what the module loads later, the twin sees too
    values = values.to(
        dtype=way.dtype if casts else values.dtype,
        memory_format=torch.channels_last if last else torch.preserve_format,
        copy=True,
    )
    return torch.nn.Parameter(values, requires_grad=False) if isinstance(one, torch.nn.Parameter) else values


def _quantize(module: torch.nn.Module, precision: str) -> None:
    try:
        from torchao import quantization  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError:
        raise MissingExtra("torchao", extra="torchao", wanted_for=f"the lever {precision}") from None
    configs: dict[str, Any] = {
        "int8-weights": quantization.Int8WeightOnlyConfig,
        "int4-weights": lambda: quantization.Int4WeightOnlyConfig(group_size=_GROUP),
        "fp8-weights": quantization.Float8WeightOnlyConfig,
    }
    quantization.quantize_(module, configs[precision]())


def quantization_noise(precision: str, weight: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """By how much rounding to this many steps moves each weight of a linear layer: drawn, not rounded.

    int8: 127 steps to each side a row; int4: 15 steps over a group; fp8: relative to each weight.
    """
    drawn = 2 * torch.rand(weight.shape, device=weight.device, generator=generator) - 1
    values = weight.detach().float()
    if precision == "fp8-weights":
        return drawn * values.abs() * 2.0**-4
    if precision == "int8-weights":
        step = values.abs().amax(dim=1, keepdim=True) / 127
    else:
        groups = values.unflatten(1, (-1, _GROUP)) if values.shape[1] % _GROUP == 0 else values[:, None]  # type: ignore[no-untyped-call]
        span = (groups.amax(dim=2, keepdim=True) - groups.amin(dim=2, keepdim=True)) / 15
        step = span.expand_as(groups).reshape(values.shape)
    return drawn * step / 2
