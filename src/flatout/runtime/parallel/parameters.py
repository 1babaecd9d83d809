"""Parameters that change their identity when a model is sharded, and the optimizer that must follow them."""

import dataclasses
from typing import Any

from flatout.records.errors import CallerMistake


@dataclasses.dataclass(frozen=True)
class Layout:
    """Which parameters an optimizer held in which group, by their names in the model as it was written."""

    groups: tuple[tuple[str, ...], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, in the order by which a state_dict numbers them."""
        return tuple(name for group in self.groups for name in group)


def named(model: Any) -> dict[str, Any]:
    """Parameters by name; one that has several names by the first."""
    return dict(model.named_parameters())


def layout_of(model: Any, optimizer: Any) -> Layout | None:
    """Raises CallerMistake where the optimizer holds something that is not the model's."""
    if optimizer is None:
        return None
    names = {id(parameter): name for name, parameter in named(model).items()}
    groups = []
    for group in optimizer.param_groups:
        foreign = sum(id(parameter) not in names for parameter in group["params"])
        if foreign:
            raise CallerMistake(
                f"an optimizer with {foreign} parameters that are not this model's",
                expected="an optimizer of model.parameters(), made before flatout.parallel is called",
                remedy="give each model its own optimizer, and call flatout.parallel for each",
            )
        groups.append(tuple(names[id(parameter)] for parameter in group["params"]))
    return Layout(tuple(groups))


def follow(optimizer: Any, layout: Layout | None, now: dict[str, Any]) -> None:
    """Put the parameters of now in the place of those that the optimizer held; drop those that are gone.

    What an optimizer had learned already is spread as its parameters are.
    """
    if optimizer is None or layout is None:
        return
    for group, names in zip(optimizer.param_groups, layout.groups, strict=True):
        before = group["params"]
        group["params"] = [now[name] for name in names if name in now]
        for old, name in zip(before, names, strict=True):
            state = optimizer.state.pop(old, None)
            if state is not None and name in now:
                optimizer.state[now[name]] = {key: as_spread(one, now[name]) for key, one in state.items()}


def as_spread(value: Any, like: Any) -> Any:
    """A whole tensor as `like` is: its part on this rank, and its device. Other values as they are.

    Numbers that some optimizers keep as tensors (`step`) stay whole, and where they are.
    """
    import torch

    from flatout.runtime.checkpoint.sharding import is_sharded, part_of

    if not isinstance(value, torch.Tensor) or value.shape != like.shape or is_sharded(value):
        return value
    if not is_sharded(like):
        return value.detach().to(like.device)
    from torch.distributed.tensor import DTensor

    part = part_of(like)
    places = tuple(slice(at, at + side) for at, side in zip(part.offsets, part.shape, strict=True))
    # A copy in any case: a view of a part would keep the whole.
    local = value.detach()[places].to(like.to_local().device, copy=True).contiguous()
    return DTensor.from_local(
        local, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def to_device(model: Any, optimizer: Any, device: Any) -> None:
    """The model, and what an optimizer has learned about it."""
    model.to(device)
    if optimizer is not None:
        for parameter, state in optimizer.state.items():
            for key, one in state.items():
                state[key] = as_spread(one, parameter)


def from_first(model: Any, joined: Any) -> None:
    """Parameters and buffers as the first rank has them: ranks seeded apart would train a mixture."""
    if joined.count == 1:
        return
    import torch
    import torch.distributed as dist

    with torch.no_grad():
        for one in (*model.parameters(), *model.buffers()):
            sent = one.detach().contiguous()
            if not one.is_cuda:  # a group that speaks NCCL alone cannot send what lies on the host
                sent = sent.to(joined.speaks_on)
            dist.broadcast(sent, 0)
            if sent.data_ptr() != one.data_ptr():
                one.copy_(sent)
