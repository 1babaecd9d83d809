"""Sees every operator, and notes the memory that its results would take on the device."""

import sys
from typing import Any, ClassVar

from flatout.memory.imagined.devices import is_on_gpu
from flatout.memory.imagined.ledger import Ledger
from flatout.memory.imagined.scratch import scratch_of

# What cuBLAS asks for at its first product on a device of compute capability 9.0, and keeps; once more for
# the thread in which gradients are computed. With a bias it is another library that is asked, with its own.
_WORKSPACE_BYTES = 32 << 20
_WORKSPACE_WITH_BIAS_BYTES = 1 << 20
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_scaled_mm")
_WITH_BIAS = ("aten::addmm",)
# All numbers here are alike; and whoever repeats a thing until it changes nothing must come to an end.
_COMPARISONS = ("aten::equal", "aten::allclose")
# Holders of a storage and of a tensor that autograd alone keeps, while we look at it.
_OURS_AND_ONE, _NAMES_AND_ONE = 2, 4


def tracker(torch: Any, ledger: Ledger, wanted: list[int], inside: list[int]) -> Any:
    """A mode; while `wanted` is positive, results are the device's whatever they are made of.

    `inside` counts how deep in it we are.
    """
    base: Any = torch.utils._python_dispatch.TorchDispatchMode  # noqa: SLF001
    from torch._subclasses.fake_tensor import DynamicOutputShapeException as unknown_shapes  # noqa: N813

    flatten = torch.utils._pytree.tree_leaves  # noqa: SLF001

    def storages(tree: Any) -> list[Any]:
        tensors = [leaf for leaf in flatten(tree) if isinstance(leaf, torch.Tensor)]
        if any(tensor.layout is not torch.strided for tensor in tensors):
            raise NotImplementedError(
                "how much sparse tensors hold depends on values, which an imagined GPU does not have; "
                "with sparse=False an upper bound can be told"
            )
        return [tensor.untyped_storage() for tensor in tensors]

    class Tracker(base):  # type: ignore[misc]
        """Below autograd: what is saved for the backward pass lives as long as it would."""

        # Of libraries that keep memory, which have been asked so far, and in which thread.
        asked: ClassVar[set[tuple[str, bool]]] = set()

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            inside[0] += 1
            try:
                return self._run(func, args, kwargs or {})
            finally:
                inside[0] -= 1

        def _run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
            if _is_whole(torch, func):
                with self:  # for what it is made of
                    return _in_parts(torch, func, args, kwargs)
            name = func.name().partition(".")[0]
            if name == "aten::_local_scalar_dense":
                ledger.guess("item")
                return _answer(torch, args[0].dtype)
            if name in _COMPARISONS:
                ledger.guess("item")
                return name != "aten::equal" or args[0].shape == args[1].shape
            on_device = wanted[0] > 0 or (
                wanted[0] == 0 and any(ledger.has(one) for one in storages((args, kwargs)))
            )
            if is_on_gpu(
                torch, kwargs.get("device")
            ):  # from within a function of torch, where no mode sees it
                kwargs, on_device = {**kwargs, "device": torch.device("cpu")}, True
            if on_device and name in _PRODUCTS:
                ledger.products.add(str(args[1].dtype).removeprefix("torch."))
                self._ask_for_workspace("product", _WORKSPACE_BYTES, name)
                if name in _WITH_BIAS:
                    self._ask_for_workspace("with bias", _WORKSPACE_WITH_BIAS_BYTES, name)
            try:
                out = func(*args, **kwargs)
            except unknown_shapes:
                out = _largest(torch, name, args)
                ledger.guess(name.removeprefix("aten::"))
            if not on_device:
                for storage in storages(out):
                    ledger.host(storage)
                return out
            if _adds_in_place(torch, func, args):
                ledger.inherit(out.untyped_storage(), args[0].untyped_storage())
                return out
            scratch = dict(scratch_of(torch, name, args, out))
            results = out if isinstance(out, tuple | list) else (out,)
            for number, result in enumerate(results):
                for storage in storages(result):
                    ledger.take(storage, name)
                if scratch.get(number):
                    ledger.scratch(scratch[number], name)
            return out

        def _ask_for_workspace(self, library: str, size: int, name: str) -> None:
            # The CPU's gradients are computed in the thread that asks for them, a GPU's in one of their own.
            asker = (library, torch._C._current_graph_task_id() != -1)  # noqa: SLF001
            if asker not in self.asked:
                self.asked.add(asker)
                ledger.workspace(size, name)

    return Tracker()


def _is_whole(torch: Any, func: Any) -> bool:
    """Whether others make up this operator: without autograd, as in inference mode, nobody took it apart."""
    name, composite = func.name(), torch._C.DispatchKey.CompositeImplicitAutograd  # noqa: SLF001
    is_known = torch._C._dispatch_has_kernel(name)  # noqa: SLF001 - questions about a tensor are not
    return bool(is_known and torch._C._dispatch_has_kernel_for_dispatch_key(name, composite))  # noqa: SLF001


def _in_parts(torch: Any, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """As autograd does it."""
    return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)  # noqa: SLF001


def _adds_in_place(torch: Any, func: Any, args: Any) -> bool:
    """Two gradients of one tensor: autograd adds in place what nobody else holds, except where it is watched.

    Of the first, one reference is autograd's; the others are ours.
    """
    if func is not torch.ops.aten.add.Tensor or torch._C._current_graph_task_id() == -1:  # noqa: SLF001
        return False
    first, second = args
    if not isinstance(second, torch.Tensor) or first.shape != second.shape or first.dtype != second.dtype:
        return False
    storage = first.untyped_storage()
    holders = torch._C._storage_Use_Count(storage._cdata)  # noqa: SLF001
    return holders <= _OURS_AND_ONE and sys.getrefcount(first) <= _NAMES_AND_ONE


def _largest(torch: Any, name: str, args: Any) -> Any:
    """The largest that an operator can give whose result depends on values; raises where nobody knows."""
    value = args[0]
    if name == "aten::nonzero":
        return value.new_empty((value.numel(), value.dim()), dtype=torch.int64)
    if name == "aten::masked_select":
        return value.new_empty(value.numel())
    if name == "aten::index":
        masks = [one for one in args[1] if one is not None and one.dtype in (torch.bool, torch.uint8)]
        if len(masks) == 1 and args[1][0] is masks[0]:
            return value.new_empty((masks[0].numel(), *value.shape[masks[0].dim() :]))
    raise NotImplementedError(f"what {name} gives depends on values, which an imagined GPU does not have")


def _answer(torch: Any, dtype: Any) -> Any:
    """A value that no script stumbles over."""
    if dtype == torch.bool:
        return False
    return 1.0 if dtype.is_floating_point else 1
