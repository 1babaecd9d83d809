"""What one rank found, all ranks hear of: a NaN on one of them is everybody's."""

from typing import Any


def ranks_of(torch: Any, group: Any = None) -> int:
    """How many ranks train together; 1 for a process that is alone."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return 1
    return int(distributed.get_world_size(group))


def rank_of(torch: Any) -> int:
    """This process's place among them."""
    return int(torch.distributed.get_rank()) if ranks_of(torch) > 1 else 0


def agree(torch: Any, flag: Any, group: Any = None) -> Any:
    """The largest flag of all ranks, which must all ask. On a GPU it stays there, and nobody waits."""
    if ranks_of(torch, group) < 2:
        return flag
    distributed = torch.distributed
    told = flag.to(_device_for(torch, flag.device, group), copy=True)
    distributed.all_reduce(told, op=distributed.ReduceOp.MAX, group=group)
    return told.to(flag.device)


def agree_on_both(torch: Any, flag: Any, loss: Any, group: Any = None) -> tuple[Any, Any]:
    """The same, and a loss that is NaN on all ranks where it is not finite on one of them."""
    if ranks_of(torch, group) < 2:
        return flag, loss
    known = (
        torch.zeros_like(flag) if loss is None else loss.detach().to(flag.device, torch.float32).reshape(())
    )
    bad_flag, bad_loss = agree(
        torch, torch.stack([flag, (known - known != 0).to(flag.dtype)]), group
    ).unbind()
    return bad_flag, None if loss is None else torch.where(bad_loss > 0, torch.nan, known)


def _device_for(torch: Any, device: Any, group: Any) -> Any:
    """Where a tensor must be for this group to carry it: NCCL knows no host memory."""
    carried = str(torch.distributed.get_backend_config(group))  # as "cpu:gloo,cuda:nccl"
    if f"{device.type}:" in carried:
        return device
    return torch.device("cpu") if "cpu:" in carried else torch.device("cuda", torch.cuda.current_device())
