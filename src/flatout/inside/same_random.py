"""Runs that are to be compared draw the same random numbers, whatever a lever does to the tensors.

torch's dropout on a GPU draws for as many elements at a time as fit into sixteen bytes, in the order of
memory: in half precision, or in another layout, other elements are dropped. Here one is drawn for each
element, in the order of its place. All of the guard's runs do so, the one as written among them.
"""

import warnings
from typing import Any

from flatout.inside.imports import after_import

# While it is alive, torch's operation is ours.
_kept: list[Any] = []


def draw_the_same(torch: Any) -> None:
    """For as long as the process lives."""
    # Compiled code then calls torch's operations for what it would draw itself.
    after_import("torch._inductor.config", lambda config: setattr(config, "fallback_random", True))
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it takes another's place is what it is for
        library.impl(
            "native_dropout",
            lambda tensor, p, train: dropout(torch, tensor, p, train),
            "CUDA",
            allow_override=True,
        )
    _kept.append(library)


def dropout(torch: Any, tensor: Any, p: float, train: bool | None) -> tuple[Any, Any]:
    """What is left of the tensor, and the mask, both with the tensor's strides."""
    out, mask = torch.empty_like(tensor), torch.empty_like(tensor, dtype=torch.bool)
    if train is False or p == 0.0:
        return out.copy_(tensor), mask.fill_(True)
    if p == 1.0:
        return out.zero_(), mask.fill_(False)
    drawn = torch.empty(tensor.shape, dtype=torch.float32, device=tensor.device).bernoulli_(1.0 - p)
    mask.copy_(drawn)
    return torch.mul(tensor, mask, out=out).mul_(1.0 / (1.0 - p)), mask
