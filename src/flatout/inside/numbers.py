"""Which values are numbers: Python's, numpy's, and tensors with one element, wherever they lie."""

import numbers
from typing import Any

from flatout.records.errors import CallerMistake


class Refused(CallerMistake):
    """Something that is no number was logged."""

    def __init__(self, what: str, *, remedy: str) -> None:
        super().__init__(what, expected="a number, or a tensor with one element", remedy=remedy)


def number_of(value: Any, torch: Any) -> Any:
    """A float where the value lies in host memory, else the tensor itself."""
    if type(value) is float:
        return value
    if torch is not None and isinstance(value, torch.Tensor):
        return _of_tensor(value)
    if isinstance(value, numbers.Real):
        return _as_float(value)
    if getattr(value, "size", None) == 1 and hasattr(value, "item"):  # numpy's
        return number_of(value.item(), torch)
    if isinstance(value, str | bytes):
        raise Refused(f"flatout.log was given text: {value!r:.60}", remedy="print it, or log a number for it")
    raise Refused(f"flatout.log was given a {type(value).__qualname__}", remedy="log its numbers one by one")


def _of_tensor(tensor: Any) -> Any:
    if tensor.numel() != 1:
        what = f"flatout.log was given a tensor of shape {tuple(tensor.shape)}"
        raise Refused(what, remedy="log its mean, its norm or one of its elements")
    if tensor.is_complex():
        raise Refused("flatout.log was given a complex tensor", remedy="log its .abs()")
    if hasattr(tensor, "placements"):  # a DTensor
        if not all(one.is_replicate() for one in tensor.placements):
            what = "flatout.log was given a tensor of which each rank holds a part"
            raise Refused(what, remedy="log its .full_tensor(), on every rank")
        tensor = tensor.to_local()
    if tensor.is_meta:
        raise Refused("flatout.log was given a tensor without data", remedy="log numbers that exist")
    if tensor.device.type != "cpu":
        return tensor
    try:
        return _as_float(tensor.detach().item())
    except (RuntimeError, TypeError) as error:  # inside of vmap, for one
        what = f"flatout.log was given a tensor that cannot be read: {str(error).splitlines()[0]}"
        raise Refused(what, remedy="log it outside of torch.func's transforms") from error


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError as error:
        raise Refused(
            "flatout.log was given a whole number past 1e308", remedy="log its logarithm"
        ) from error
