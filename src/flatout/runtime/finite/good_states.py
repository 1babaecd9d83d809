"""What a training was like when all of it was finite, to go back to where there is no checkpoint.

Copies of parameters, buffers and the optimizers' states wait in the host's memory: the newest two, since the
newest may be of a training that was lost already and did not show it. They are taken every so many updates,
fewer the longer a copy takes. All ranks take them, and go back, at the same update.
"""

import copy
import dataclasses
import time
from collections.abc import Iterable, Sequence
from typing import Any

from flatout.levers.offloading import host_has_room
from flatout.levers.optimizer_states import wait_for_states
from flatout.records.words import memory_size
from flatout.runtime.finite.agreement import agree
from flatout.runtime.finite.gradients import are_finite, parameters_of

_FEWEST_UPDATES = 50
# Of the time, what copies may take.
_SHARE = 0.01
_KEPT = 2


@dataclasses.dataclass
class _State:
    update: int
    # Each tensor of the training, and its copy.
    values: list[tuple[Any, Any]]
    # Of each optimizer, by parameter and name: a copy, or what is no tensor.
    states: list[tuple[Any, dict[Any, dict[str, Any]]]]


class GoodStates:
    """Copies of a training, the newest last."""

    def __init__(self, torch: Any, *, fewest_updates: int = _FEWEST_UPDATES) -> None:
        self._torch = torch
        self._fewest = fewest_updates
        self._kept: list[_State] = []
        self._next = 2  # by then every optimizer has been seen
        self._ended: tuple[float, int] | None = None
        # By its id: whether a buffer was finite at first. Masks hold infinities for good.
        self._finite_buffers: dict[int, bool] = {}
        # Why there are no copies, where there can be none.
        self.problem = ""

    @property
    def has_any(self) -> bool:
        """Whether there is a copy to go back to."""
        return bool(self._kept)

    def is_due(self, update: int) -> bool:
        """Whether a copy is to be taken after this update, which went well."""
        return not self.problem and update >= self._next

    def keep(self, update: int, models: Sequence[Any], optimizers: Sequence[Any]) -> bool:
        """Take a copy; or say that something is not finite, which then is not kept. All ranks must ask."""
        began = time.monotonic()
        for optimizer in optimizers:
            wait_for_states(optimizer)
        values = _values(models, optimizers)
        if not self._are_sound(values, models, optimizers):
            self._next = update + self._fewest
            return False
        states = [(one, dict(one.state)) for one in optimizers]
        if not self._has_room(values, states):
            return True
        spare = self._kept.pop(0) if len(self._kept) == _KEPT else None
        self._kept.append(self._copy(update, values, states, spare))
        self._next = update + self._until_next(began, update)
        return True

    def go_back(self) -> int | None:
        """As it was when the newest copy was taken: after which update; None where there is no copy.

        Asked again before there is another, it goes back further.
        """
        if not self._kept:
            return None
        state = self._kept.pop() if len(self._kept) > 1 else self._kept[-1]
        with self._torch.no_grad():
            for tensor, kept in state.values:
                _local(tensor).copy_(kept)
            for optimizer, by_parameter in state.states:
                wait_for_states(optimizer)
                for parameter in [one for one in optimizer.state if one not in by_parameter]:
                    del optimizer.state[parameter]
                for parameter, kept in by_parameter.items():
                    self._put_back(optimizer.state[parameter], kept, parameter)
        return state.update

    def _are_sound(self, values: Iterable[Any], models: Sequence[Any], optimizers: Sequence[Any]) -> bool:
        buffers = {id(one): one for model in models for one in model.buffers()}
        for key, one in buffers.items():
            if key not in self._finite_buffers:
                self._finite_buffers[key] = not bool(are_finite(self._torch, [one]))
        held = [one for one in values if self._finite_buffers.get(id(one), True)]
        states = [
            one
            for optimizer in optimizers
            for state in optimizer.state.values()
            if isinstance(state, dict)
            for one in state.values()
            if isinstance(one, self._torch.Tensor)
        ]
        return not bool(agree(self._torch, are_finite(self._torch, [*held, *states])))

    def _has_room(self, values: Sequence[Any], states: Sequence[tuple[Any, dict[Any, Any]]]) -> bool:
        """On every rank; else there will be no copies."""
        if len(self._kept) == _KEPT:
            return True
        tensors = [one for _, by_parameter in states for state in by_parameter.values() for one in _in(state)]
        needed = sum(_local(one).nbytes for one in (*values, *tensors) if hasattr(one, "nbytes"))
        lacks = self._torch.tensor(0.0 if host_has_room(needed) else 1.0, device=_device_of(values))
        if bool(agree(self._torch, lacks)):
            self.problem = f"the host has no room for a copy of the training ({memory_size(needed)})"
        return not self.problem

    def _copy(
        self, update: int, values: Sequence[Any], states: Sequence[tuple[Any, Any]], spare: _State | None
    ) -> _State:
        free = {id(tensor): kept for tensor, kept in spare.values} if spare is not None else {}
        return _State(
            update,
            [(one, self._copied(one, free.get(id(one)))) for one in values],
            [
                (optimizer, {parameter: self._copied_state(state) for parameter, state in found.items()})
                for optimizer, found in states
            ],
        )

    def _copied(self, tensor: Any, into: Any = None) -> Any:
        own = _local(tensor)
        if into is None or into.shape != own.shape or into.dtype != own.dtype:
            into = self._torch.empty(own.shape, dtype=own.dtype)
        return into.copy_(own)

    def _copied_state(self, state: Any) -> Any:
        if not isinstance(state, dict):
            return copy.deepcopy(state)
        is_tensor = self._torch.Tensor
        return {
            name: self._copied(one) if isinstance(one, is_tensor) else copy.deepcopy(one)
            for name, one in state.items()
        }

    def _put_back(self, state: Any, kept: Any, parameter: Any) -> None:
        if not isinstance(state, dict):
            return
        for name in [one for one in state if one not in kept]:
            del state[name]
        for name, value in kept.items():
            now = state.get(name)
            if not isinstance(value, self._torch.Tensor):
                state[name] = copy.deepcopy(value)
            elif isinstance(now, self._torch.Tensor) and _local(now).shape == value.shape:
                _local(now).copy_(value)
            else:
                state[name] = value.to(parameter.device, copy=True)

    def _until_next(self, began: float, update: int) -> int:
        """Updates until the next copy: as many as make this one cost little."""
        ended = time.monotonic()
        wanted = float(self._fewest)
        if self._ended is not None and update > self._ended[1]:
            each = max(1e-6, (began - self._ended[0]) / (update - self._ended[1]))
            wanted = max(wanted, (ended - began) / (_SHARE * each))
        self._ended = ended, update
        device = _device_of([tensor for tensor, _ in self._kept[-1].values])
        return int(agree(self._torch, self._torch.tensor(min(wanted, 1e6), device=device)))


def _values(models: Sequence[Any], optimizers: Sequence[Any]) -> list[Any]:
    """All that a training changes of its models, each once."""
    found = {id(one): one for optimizer in optimizers for one in parameters_of(optimizer)}
    for model in models:
        for one in (*model.parameters(), *model.buffers()):
            found.setdefault(id(one), one)
    return list(found.values())


def _in(state: Any) -> list[Any]:
    return list(state.values()) if isinstance(state, dict) else []


def _local(tensor: Any) -> Any:
    """This rank's part of it, outside of any graph."""
    tensor = tensor.detach()
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _device_of(tensors: Sequence[Any]) -> Any:
    return tensors[0].device if tensors else "cpu"
