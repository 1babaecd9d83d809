"""Lists that are long: averages of parameters and what an epoch has come to are state, others may be data."""

from collections.abc import Iterable
from typing import Any

from flatout.runtime.protect.insides import within

# Up to here, nobody asks what it is.
LONG = 256
# Longer ones are not looked into, unless there is one element for each parameter.
_LONGEST, _LONGEST_OF_NUMBERS = 4096, 16384
# A history has elements of few numbers.
_TINY = 16
# Tensors that nobody has written to since they were made may be data: so much is saved with each checkpoint.
_MOST_BYTES = 64 << 20

# What lists were when they were looked at last, by the ways to them; None for those that have changed: data
# does not.
_last_seen: dict[str, tuple[int, int, int] | None] = {}


class Parameters:
    """Those of all models: what goes with them comes in as many tensors, or in as many shapes."""

    def __init__(self, modules: Iterable[Any]) -> None:
        self.counts: set[int] = set()
        self.shapes: set[Any] = set()
        for one in modules:
            tensors = list(one.parameters())
            self.shapes |= {tensor.shape for tensor in tensors}
            learned = sum(tensor.requires_grad for tensor in tensors)
            self.counts |= {len(tensors), learned, len(tensors) + len(list(one.buffers()))}


def is_worth_a_look(torch: Any, value: Any, parameters: Parameters) -> bool:
    """Whether what a long list holds is to be saved, as far as its length and its bytes allow."""
    if len(value) in parameters.counts and isinstance(value[0], torch.Tensor):
        return True
    found = list(within((torch.Tensor, torch.nn.Module), value))
    tensors = [one for one in found if isinstance(one, torch.Tensor)]
    are_tiny = bool(tensors) and len(tensors) == len(found) and all(one.numel() <= _TINY for one in tensors)
    if len(value) > (_LONGEST_OF_NUMBERS if are_tiny else _LONGEST):
        return False
    if are_tiny or all(one.shape in parameters.shapes for one in tensors):
        return True
    data_bytes = sum(one.numel() * one.element_size() for one in tensors if not was_made_here(one))
    return bool(data_bytes <= _MOST_BYTES)


def is_state(torch: Any, value: Any, path: str) -> bool:
    """Whether one that is not looked into holds more than data, so that somebody will miss it."""
    mark = (len(value), id(value[0]), id(value[-1]))
    has_changed = _last_seen.setdefault(path, mark) != mark
    if has_changed:
        _last_seen[path] = None
    found = within((torch.Tensor, torch.nn.Module, torch.Generator), value)
    return any(
        has_changed or not isinstance(one, torch.Tensor) or one.numel() <= _TINY or was_made_here(one)
        for one in found
    )


def was_made_here(tensor: Any) -> bool:
    """Whether it was written to, or computed: what has only been made is made again."""
    return bool(tensor.is_inference() or tensor._version or tensor.grad_fn is not None)  # noqa: SLF001
