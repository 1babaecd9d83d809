"""Linear layers of a model exchanged for torchao's in float8, and back; both use the same parameters."""

import importlib
from collections.abc import Iterator
from typing import Any

_HOOKS = (
    *("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),
    *("_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks"),
)


class Float8Layers:
    """The layers that are exchanged. Each is made once, so that compiled code knows it again."""

    def __init__(self, torch: Any, *, emulated: bool = False) -> None:
        self._torch = torch
        # In float32 with float8's rounding, where there is no such hardware.
        self._emulated = emulated
        self._made: dict[Any, Any] = {}
        self._exchanged: list[tuple[Any, str, Any, Any]] = []

    def put(self, root: Any) -> int:
        """Exchange what can be; how many that were."""
        before = len(self._exchanged)
        for parent, name, layer in list(children(root)):
            if suits_float8(self._torch, layer):
                if layer not in self._made:
                    self._made[layer] = self._in_float8(layer)
                low = self._made[layer]
                low.weight, low.bias = layer.weight, layer.bias
                low.training = layer.training
                parent._modules[name] = low  # noqa: SLF001
                self._exchanged.append((parent, name, layer, low))
        return len(self._exchanged) - before

    def take(self) -> None:
        """Put the layers back that were found, unless the script has put others there since."""
        for parent, name, layer, low in self._exchanged:
            if parent._modules.get(name) is low:  # noqa: SLF001
                layer.weight, layer.bias = low.weight, low.bias
                layer.training = low.training
                parent._modules[name] = layer  # noqa: SLF001
        self._exchanged = []

    def _in_float8(self, layer: Any) -> Any:
        float8 = importlib.import_module("torchao.float8")
        # Batches of any size: the products of the backward pass sum over it, in sixteens.
        config = float8.Float8LinearConfig(pad_inner_dim=True, emulate=self._emulated)
        return float8.convert_to_float8_training(layer, config=config)


def suits_float8(torch: Any, module: Any) -> bool:
    """A plain linear layer in sizes that the hardware can do."""
    return is_plain_linear(torch, module) and module.in_features % 16 == 0 and module.out_features % 16 == 0


def is_plain_linear(torch: Any, module: Any) -> bool:
    """A linear layer as torch makes them, which nobody looks into."""
    return type(module) is torch.nn.Linear and not any(getattr(module, name, None) for name in _HOOKS)


def children(root: Any) -> Iterator[tuple[Any, str, Any]]:
    """Every module below a root, with its parent and its name there."""
    for parent in root.modules():
        for name, child in parent._modules.items():  # noqa: SLF001 - with those that appear twice
            if child is not None:
                yield parent, name, child
