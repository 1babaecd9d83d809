"""Ranks that train together and must not part ways: what one meets with, all hear of.

They agree on the host, through gloo: nobody waits for a device, and a device that is out of memory may have
none left for a message.
"""

import contextlib
import sys
import weakref
from collections.abc import Iterator
from typing import Any

from flatout.records.errors import CallerMistake

# Gradients that travel together, as DistributedDataParallel does it.
_BUCKET_BYTES = 25 * 2**20
# A group of hosts for each group that was ever asked for: making one is a collective of its own.
_on_hosts: weakref.WeakKeyDictionary[Any, tuple[Any, str]] = weakref.WeakKeyDictionary()


class Ranks:
    """The ranks of a group; one alone where nothing is distributed."""

    def __init__(self, group: Any = None) -> None:
        import torch.distributed as dist

        is_on = dist.is_available() and dist.is_initialized()
        self._group = group if group is not None else (dist.group.WORLD if is_on else None)
        self.count = dist.get_world_size(self._group) if is_on else 1
        self.rank = dist.get_rank(self._group) if is_on else 0
        # A rank that is not in the group is on its own.
        self.alone = self.count <= 1

    def largest(self, values: list[int]) -> list[int]:
        """Of each value, the largest that any rank gave. All ranks must ask for it."""
        if self.alone:
            return values
        import torch
        import torch.distributed as dist

        group, device = _host_group(self._group)
        told = torch.tensor(values, dtype=torch.int64, device=device)
        dist.all_reduce(told, op=dist.ReduceOp.MAX, group=group)
        return [int(value) for value in told.tolist()]


def _host_group(group: Any) -> tuple[Any, str]:
    """A group of the same ranks that talks through gloo, and where its tensors must be."""
    import torch.distributed as dist

    if group not in _on_hosts:
        made, device = group, "cpu"
        # Never the group that was given: a step that was broken off may have left it in mid-sentence.
        if dist.is_gloo_available():
            ranks = dist.get_process_group_ranks(group)
            made = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
        elif "nccl" in str(dist.get_backend(group)):
            device = "cuda"
        _on_hosts[group] = (made, device)
    return _on_hosts[group]


class Replicas:
    """A model in DistributedDataParallel, whose ranks reduce gradients when all have them, not before.

    DDP reduces during the backward pass. A rank that runs out in the middle of it leaves the others waiting
    for good, so every attempt goes without, and one reduction follows when all ranks are through.
    """

    def __init__(self, model: Any) -> None:
        from torch.nn.parallel import DistributedDataParallel

        made = _as_made(model)
        self._wrapper: Any = made if isinstance(made, DistributedDataParallel) else None
        self.gradients: list[Any] = []
        # For each of them whether it was there before room was made; and that room, by kind.
        self._has: list[int] = []
        self._room: dict[Any, Any] = {}
        if self._wrapper is None:
            return
        if self._wrapper._comm_hooks:  # noqa: SLF001
            raise CallerMistake(
                "a DistributedDataParallel with a communication hook",
                expected="gradients that are averaged over the ranks, and nothing more",
                remedy="leave the hook out",
            )
        if self._wrapper.static_graph:
            raise CallerMistake(
                "a DistributedDataParallel with static_graph=True",
                expected="one that may go without averaging: it loses count of a static graph meanwhile",
                remedy="leave static_graph out",
            )
        # Within the user's own `no_sync` nothing is reduced.
        if self._wrapper.require_backward_grad_sync:
            ignored = self._wrapper.parameters_to_ignore
            named = self._wrapper.module.named_parameters()
            self.gradients = [one for name, one in named if one.requires_grad and name not in ignored]

    def has_gradients(self) -> list[int]:
        """For each parameter whether it got a gradient here."""
        return self._has or [0] * len(self.gradients)

    def make_room(self) -> None:
        """Take all that averaging needs before the ranks agree: who ran out later would strand the others."""
        import torch

        self._has = [int(parameter.grad is not None) for parameter in self.gradients]
        with torch.no_grad():
            for parameter in self.gradients:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            self._room = _room_for([parameter.grad for parameter in self.gradients])

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """Within, the model speaks to no other rank. All ranks must enter together."""
        wrapper = self._wrapper
        if wrapper is None:
            yield
            return
        # DDP hands out the first rank's buffers at the first forward, which a rank may not live to see.
        if wrapper._check_sync_bufs_pre_fwd():  # noqa: SLF001
            wrapper._sync_buffers()  # noqa: SLF001
        found, wrapper.require_forward_param_sync = wrapper.require_forward_param_sync, False
        try:
            with wrapper.no_sync():
                yield
        finally:
            wrapper.require_forward_param_sync = found

    def average(self, anywhere: list[int]) -> None:
        """Gradients averaged over the ranks, for each parameter that has one anywhere."""
        if self._wrapper is None:
            return
        import torch

        wanted = []
        for parameter, has in zip(self.gradients, anywhere, strict=True):
            if has:
                wanted.append(parameter.grad)
            else:
                parameter.grad = None
        with torch.no_grad():
            for bucket in _buckets(wanted):
                _average(bucket, self._room.get(_kind(bucket[0])), self._wrapper.process_group)
        self._room = {}


def _buckets(gradients: list[Any]) -> Iterator[list[Any]]:
    """Neighbours of one kind, up to what travels together."""
    bucket: list[Any] = []
    held = 0
    for gradient in gradients:
        its = gradient.numel() * gradient.element_size()
        alike = bucket and _kind(bucket[0]) == _kind(gradient)
        if bucket and (not alike or gradient.is_sparse or bucket[0].is_sparse or held + its > _BUCKET_BYTES):
            yield bucket
            bucket, held = [], 0
        bucket.append(gradient)
        held += its
    if bucket:
        yield bucket


def _kind(gradient: Any) -> tuple[Any, Any]:
    return gradient.dtype, gradient.device


def _room_for(gradients: list[Any]) -> dict[Any, Any]:
    """By kind, a flat tensor for any bucket of these."""
    import torch

    sizes: dict[Any, tuple[int, int]] = {}
    for gradient in gradients:
        if not gradient.is_sparse:
            total, alone = sizes.get(_kind(gradient), (0, _BUCKET_BYTES // gradient.element_size()))
            if not gradient.is_contiguous():
                alone = max(alone, gradient.numel())
            sizes[_kind(gradient)] = total + gradient.numel(), alone
    return {
        (dtype, device): torch.empty(min(sizes_of_kind), dtype=dtype, device=device)
        for (dtype, device), sizes_of_kind in sizes.items()
    }


def _average(bucket: list[Any], room: Any, group: Any) -> None:
    """Takes no memory: not all ranks could say that they ran out."""
    import torch.distributed as dist

    count = dist.get_world_size(group)
    if len(bucket) == 1 and (bucket[0].is_sparse or bucket[0].is_contiguous()):
        dist.all_reduce(bucket[0].div_(count), group=group)
        return
    sizes = [gradient.numel() for gradient in bucket]
    flat = room[: sum(sizes)]
    views = [part.view(gradient.shape) for gradient, part in zip(bucket, flat.split(sizes), strict=True)]
    for gradient, view in zip(bucket, views, strict=True):
        view.copy_(gradient)
    dist.all_reduce(flat.div_(count), group=group)
    for gradient, view in zip(bucket, views, strict=True):
        gradient.copy_(view)


def refuse_what_strands(module: Any) -> None:
    """Models that speak to other ranks in mid-step: a rank that runs out there strands the others."""
    import torch
    import torch.distributed as dist

    if module is None or not (dist.is_available() and dist.is_initialized()):
        return
    from torch.nn.parallel import DistributedDataParallel

    fsdp = sys.modules.get("torch.distributed.fsdp")
    sharded = () if fsdp is None else (fsdp.FullyShardedDataParallel, fsdp.FSDPModule)
    below = list(module.modules())
    if any(isinstance(one, sharded) for one in below):
        raise CallerMistake(
            f"a sharded model ({type(module).__qualname__})",
            expected="one that each rank holds whole: plain, or in DistributedDataParallel",
            remedy="choose a batch that fits: `flatout fit` says what it takes",
        )
    if any(isinstance(one, torch.nn.SyncBatchNorm) and one.training for one in below):
        raise CallerMistake(
            f"a SyncBatchNorm in {type(module).__qualname__}: ranks wait for each other in its forward",
            expected="layers that compute on each rank alone",
            remedy="group or layer norm, or plain batch norm",
        )
    if any(isinstance(one, DistributedDataParallel) and one is not _as_made(module) for one in below):
        raise CallerMistake(
            f"a DistributedDataParallel inside of {type(module).__qualname__}",
            expected="one that wraps the whole model",
            remedy="give the DistributedDataParallel itself as the model",
        )


def _as_made(model: Any) -> Any:
    """Without torch.compile around it."""
    return getattr(model, "_orig_mod", model)
