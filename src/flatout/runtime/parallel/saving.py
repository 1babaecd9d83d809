"""Puts together, on the first rank, what is spread over all; and spreads what one process has saved.

The result has the names, the order and the form that the model and the optimizer have in one process: plain
`load_state_dict` takes it, with or without Flatout.
"""

from collections.abc import Iterator
from typing import Any

from flatout.records.errors import CallerMistake
from flatout.runtime.checkpoint.sharding import is_sharded
from flatout.runtime.parallel.joining import Joined
from flatout.runtime.parallel.parameters import Layout, as_spread, named
from flatout.runtime.parallel.wrapped import Wrapped

# In a flat state, between a parameter's name and what an optimizer keeps about it.
_OF = "\n"


def whole_model(wrapped: Wrapped, names: tuple[str, ...]) -> dict[str, Any]:
    """The model's state on the first rank, on the host; nothing on the others. All ranks must call it."""
    found = _gathered(wrapped.mine(), wrapped)
    return {name: found[name] for name in names if name in found}


def whole_optimizer(wrapped: Wrapped, layout: Layout) -> dict[str, Any]:
    """The optimizer's state on the first rank, numbered as it was before ranks came into it."""
    optimizer = wrapped.optimizer
    now = named_now(wrapped)
    flat = {
        f"{name}{_OF}{key}": value
        for name, parameter in now.items()
        for key, value in optimizer.state.get(parameter, {}).items()
    }
    found = _gathered(flat, wrapped)
    if wrapped.joined.rank:
        return {}
    numbers = {name: number for number, name in enumerate(layout.names)}
    state: dict[int, dict[str, Any]] = {}
    for path, value in found.items():
        name, key = path.split(_OF)
        if name in numbers:
            state.setdefault(numbers[name], {})[key] = value
    groups = []
    for group, names in zip(_first_of_each(wrapped, layout), layout.groups, strict=True):
        settings = {key: value for key, value in group.items() if key not in ("params", _CAME_FROM)}
        groups.append({**settings, "params": [numbers[name] for name in names]})
    return {"state": dict(sorted(state.items())), "param_groups": groups}


_CAME_FROM = "flatout_group"


def _first_of_each(wrapped: Wrapped, layout: Layout) -> Iterator[dict[str, Any]]:
    """For each group of old, one of those that it has become: they have the same settings."""
    groups = wrapped.optimizer.param_groups
    for number in range(len(layout.groups)):
        yield next(group for at, group in enumerate(groups) if group.get(_CAME_FROM, at) == number)


def named_now(wrapped: Wrapped) -> dict[str, Any]:
    """Parameters that this rank trains."""
    return {name: one for name, one in named(wrapped.bare).items() if not one.is_meta}


def load_model(wrapped: Wrapped, state: dict[str, Any], names: tuple[str, ...]) -> None:
    """Take a whole state, on every rank: each keeps its part."""
    import torch

    missing = sorted({*names} - {*state})
    foreign = sorted({*state} - {*names})
    if missing or foreign:
        raise CallerMistake(
            f"a state with {len(missing)} names missing and {len(foreign)} that are not the model's: "
            + ", ".join((*missing, *foreign)[:4]),
            expected=f"the {len(names)} names of the model as it was written",
            remedy="save with `.save(path)`, or with model.state_dict() in one process",
        )
    with torch.no_grad():
        for name, mine in wrapped.kept().items():
            if not isinstance(mine, torch.Tensor):
                continue
            if mine.shape != state[name].shape:
                raise CallerMistake(
                    f"{name} of shape {tuple(state[name].shape)}",
                    expected=f"shape {tuple(mine.shape)}",
                    remedy="build the model as it was when it was saved",
                )
            mine.copy_(as_spread(state[name].to(mine.dtype), mine))


def load_optimizer(wrapped: Wrapped, saved: dict[str, Any], layout: Layout) -> None:
    """Take a whole state, on every rank: each keeps what is its own."""
    optimizer, now = wrapped.optimizer, named_now(wrapped)
    sizes = [len(group["params"]) for group in saved["param_groups"]]
    if sizes != [len(names) for names in layout.groups]:
        raise CallerMistake(
            f"an optimizer's state with {sizes} parameters in its groups",
            expected=f"{[len(names) for names in layout.groups]}",
            remedy="make the optimizer as it was when it was saved",
        )
    for at, group in enumerate(optimizer.param_groups):
        of = saved["param_groups"][group.get(_CAME_FROM, at)]
        group.update({key: value for key, value in of.items() if key != "params"})
    optimizer.state.clear()
    for number, name in enumerate(layout.names):
        kept = saved["state"].get(number)
        if kept is not None and name in now:
            optimizer.state[now[name]] = {
                key: _copied(as_spread(value, now[name]), value) for key, value in kept.items()
            }


def _copied(spread: Any, value: Any) -> Any:
    """Never the very tensor that was handed over: the optimizer will change it."""
    import torch

    is_the_same = isinstance(value, torch.Tensor) and spread.data_ptr() == value.data_ptr()
    return spread.clone() if is_the_same else spread


def _gathered(local: dict[str, Any], wrapped: Wrapped) -> dict[str, Any]:
    """All of it on the first rank and the host; tensors one by one, as each takes its whole size."""
    joined = wrapped.joined
    if wrapped.spread_by_name:
        return dict(_sent(local, joined))
    found = {}
    for name, value in local.items():
        whole = _whole(value)
        if joined.rank == 0:
            found[name] = whole
    return found


def _whole(value: Any) -> Any:
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    whole: Any = value
    if is_sharded(value):
        whole = whole.full_tensor()
    return whole.detach().to("cpu", copy=True)


def _sent(local: dict[str, Any], joined: Joined) -> Iterator[tuple[str, Any]]:
    """What each rank has, to the first: names and shapes at once, then the tensors."""
    import torch
    import torch.distributed as dist

    about = {
        name: (tuple(one.shape), one.dtype) if isinstance(one, torch.Tensor) else one
        for name, one in local.items()
    }
    told: list[Any] = [None] * joined.count
    dist.all_gather_object(told, about)
    if joined.rank:
        for one in local.values():
            if isinstance(one, torch.Tensor):
                dist.send(one.detach().to(joined.speaks_on).contiguous(), 0)
        return
    yield from ((name, _whole(one)) for name, one in local.items())
    for rank in range(1, joined.count):
        for name, one in told[rank].items():
            if not (isinstance(one, tuple) and len(one) == 2 and isinstance(one[1], torch.dtype)):
                yield name, one
                continue
            room = torch.empty(one[0], dtype=one[1], device=joined.speaks_on)
            dist.recv(room, rank)
            yield name, room.cpu()
