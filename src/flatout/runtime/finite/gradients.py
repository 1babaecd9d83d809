"""Whether gradients are finite, without the host having to wait for the answer.

The norm of each gradient is taken in one pass over all of them, which writes nothing. A norm is finite if
and only if its gradient is, so that one flag on the device says it for all, and the norms say for whom. Where
updates are clipped, the norms are those that clipping needs anyway.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

# Their squares overflow long before they do.
_HALF = ("torch.float16", "torch.bfloat16")


@dataclasses.dataclass(frozen=True)
class Look:
    """What one look at gradients found; all of it is on the device."""

    # 1.0 where something is not finite, else 0.0; what fused optimizers take as `found_inf`.
    flag: Any
    # Parameters with a gradient, and for each a mark: 0.0, or NaN where its gradient is not finite.
    owners: tuple[Any, ...]
    marks: Any
    # The norms, in pieces by device and type.
    norms: tuple[Any, ...]


def parameters_of(optimizer: Any) -> list[Any]:
    """All that it updates."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def look(torch: Any, parameters: Iterable[Any], *, order: float = math.inf) -> Look:
    """Look at the gradients of these parameters; `order` is that of the norm."""
    parameters = list(parameters)
    grouped: dict[Any, tuple[list[Any], list[Any]]] = {}
    with torch.no_grad():
        for parameter in parameters:
            values = None if parameter.grad is None else plain_values(torch, parameter.grad)
            if values is not None:
                owners, found = grouped.setdefault((values.device, values.dtype), ([], []))
                owners.append(parameter)
                found.append(values)
        norms = tuple(_norms(torch, values, order) for _, values in grouped.values())
        marks = _marks(torch, norms, _device_of(torch, norms or parameters))
        everyone = tuple(owner for owned, _ in grouped.values() for owner in owned)
        return Look(_flag(torch, marks), everyone, marks, norms)


def nothing_found(torch: Any, parameters: Sequence[Any]) -> Look:
    """What a look would say that had no objections: on the device on which it would say it."""
    with_gradients = [parameter for parameter in parameters if parameter.grad is not None]
    marks = _marks(torch, (), _device_of(torch, with_gradients or parameters))
    return Look(_flag(torch, marks), (), marks, ())


def brought(tensor: Any, device: Any) -> Any:
    """On this device; nobody waits for a GPU's, but the host reads what it has at once."""
    return tensor.to(device, non_blocking=device.type == "cuda")


def plain_values(torch: Any, tensor: Any) -> Any:
    """What of it has to be finite, as a dense real tensor of this rank's; None where there is nothing."""
    if hasattr(tensor, "to_local"):  # sharded: this rank's part
        tensor = tensor.to_local()
    if tensor.is_sparse:
        # Values of one place add up later: in half precision that can overflow.
        tensor = tensor.coalesce().values() if tensor.dtype == torch.float16 else tensor._values()  # noqa: SLF001
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if not tensor.is_floating_point() or not tensor.numel():
        return None
    return tensor.float() if tensor.element_size() == 1 else tensor


def are_finite(torch: Any, tensors: Iterable[Any]) -> Any:
    """The flag of any tensors: parameters, or the states of an optimizer."""
    grouped: dict[Any, list[Any]] = {}
    first = None
    with torch.no_grad():
        for tensor in tensors:
            first = tensor if first is None else first
            values = plain_values(torch, tensor.detach())
            if values is not None:
                grouped.setdefault((values.device, values.dtype), []).append(values)
        norms = [_norms(torch, values, math.inf) for values in grouped.values()]
        return _flag(
            torch, _marks(torch, norms, _device_of(torch, norms or ([] if first is None else [first])))
        )


def marks_of(torch: Any, tensors: Sequence[Any]) -> Any:
    """For each of these, of one device and type: 0.0, or NaN where it is not finite."""
    norms = [] if not tensors else [_norms(torch, list(tensors), math.inf)]
    return _marks(torch, norms, _device_of(torch, tensors))


def total_norm(torch: Any, found: Look) -> Any:
    """The norm of all gradients together, of a look of order 2."""
    device = found.flag.device
    norms = [brought(one, device) for one in found.norms]
    return torch.linalg.vector_norm(torch.cat(norms)) if norms else torch.zeros((), device=device)


def _norms(torch: Any, tensors: list[Any], order: float) -> Any:
    """One norm a tensor, as a vector."""
    if order == math.inf and tensors[0].device.type == "cpu":
        # Ten times as fast there; where it is not finite, squares may have overflowed, and only they.
        quick = _norms(torch, tensors, 2.0)
        if bool(torch.isfinite(quick).all()):
            return quick
    wider = {"dtype": torch.float32} if order != math.inf and str(tensors[0].dtype) in _HALF else {}
    norms = torch.stack(torch._foreach_norm(tensors, ord=order, **wider))  # noqa: SLF001
    return norms.float() if norms.element_size() < 4 else norms


def _marks(torch: Any, norms: Sequence[Any], device: Any) -> Any:
    """Nothing times a finite number is nothing; infinity and NaN leave NaN."""
    marks = [brought(one * 0, device).float() for one in norms]
    return torch.cat(marks) if marks else torch.zeros(0, device=device)


def _flag(torch: Any, marks: Any) -> Any:
    return (marks.sum() != 0).to(torch.float32)  # NaN differs from everything


def _device_of(torch: Any, tensors: Sequence[Any]) -> Any:
    return next((tensor.device for tensor in tensors), torch.device("cpu"))
