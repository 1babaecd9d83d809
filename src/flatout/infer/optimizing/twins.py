"""What rounding does to a module's outputs: the same call with every result off by as much as a dtype rounds.

Each operation's result is multiplied by one plus a number drawn from the roundoff, and so are the operands
of products. How far outputs move says what a lower precision may change, for this module and these inputs,
through all its layers; no table of tolerances knows that.
"""

import copy
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flatout.infer.optimizing.weights import quantization_noise

# Operations that move numbers or choose among them: what was rounded before stays as it is.
_MOVES = frozenset(
    [
        "clone",
        "_to_copy",
        "copy_",
        "cat",
        "stack",
        "index",
        "index_select",
        "select",
        "gather",
        "relu",
        "relu_",
        "max_pool2d_with_indices",
        "where",
        "maximum",
        "minimum",
        "constant_pad_nd",
        "repeat",
        "masked_fill",
        "masked_fill_",
        "neg",
        "abs",
        "clamp",
        "clamp_min",
        "clamp_max",
        "fill_",
        "zero_",
        "max",
        "min",
        "amax",
        "amin",
        "sort",
        "topk",
        "full_like",
        "zeros_like",
        "ones_like",
        "empty_like",
        "new_zeros",
        "new_full",
        "new_ones",
        "new_empty",
        "lift_fresh",
        "lift_fresh_copy",
        "scatter",
        "scatter_",
        "triu",
        "tril",
        "round",
        "floor",
        "ceil",
        "sign",
    ]
)
_PRODUCTS = frozenset(
    [
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "convolution",
        "_convolution",
        "mkldnn_rnn_layer",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_native_multi_head_attention",
        "_cudnn_rnn",
        "lstm",
        "gru",
        "_thnn_fused_lstm_cell",
        "dot",
        "mv",
        "linear",
        "matmul",
        "_fused_sdp_choice",
    ]
)


class Rounding(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is on, results are off by up to `roundoff`, relative to them; drawn from `seed`."""

    def __init__(self, roundoff: float, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._roundoff = roundoff
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One operation."""
        name = func.overloadpacket.__name__
        if name in _PRODUCTS:
            args = tuple(self._off(one) for one in args)
        out = func(*args, **(kwargs or {}))
        if name in _MOVES or not any(isinstance(one, torch.Tensor | list) for one in args):
            return out
        returns = func._schema.returns  # noqa: SLF001
        if isinstance(out, tuple):
            return tuple(self._result(one, info.alias_info) for one, info in zip(out, returns, strict=False))
        return self._result(out, returns[0].alias_info if returns else None)

    def _result(self, out: Any, alias: Any) -> Any:
        if alias is None:
            return self._off(out)
        if alias.is_write and _rounds(out):
            return out.mul_(self._factors(out))
        return out  # a view

    def _off(self, one: Any) -> Any:
        return one * self._factors(one) if _rounds(one) else one

    def _factors(self, one: torch.Tensor) -> torch.Tensor:
        if one.device not in self._generators:
            self._generators[one.device] = torch.Generator(one.device).manual_seed(self._seed)
        # In float32 at least: in bfloat16, one plus its own roundoff is one.
        wide = one.dtype if one.dtype == torch.float64 else torch.float32
        drawn = torch.rand(one.shape, dtype=wide, device=one.device, generator=self._generators[one.device])
        return drawn.mul_(2 * self._roundoff).add_(1 - self._roundoff)


def _rounds(one: Any) -> bool:
    return isinstance(one, torch.Tensor) and one.is_floating_point() and one.numel() > 0


class Seen(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes which operations a call is made of."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()
        self.has_images = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One operation."""
        name = func.overloadpacket.__name__
        self.names.add(name)
        if name == "convolution" and args[1].dim() == 4:
            self.has_images = True
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def with_noisy_weights(module: torch.nn.Module, precision: str, seed: int) -> torch.nn.Module:
    """A copy whose linear layers are off by as much as quantizing moves them."""
    known: dict[int, Any] = {id(one): one for one in (*module.parameters(), *module.buffers())}
    for part in module.modules():
        if isinstance(part, torch.nn.Linear):
            weight = part.weight
            generator = torch.Generator(weight.device).manual_seed(seed)
            noisy = (weight.float() + quantization_noise(precision, weight, generator)).to(weight.dtype)
            known[id(weight)] = torch.nn.Parameter(noisy, requires_grad=False)
    made: torch.nn.Module = copy.deepcopy(module, known)
    return made
