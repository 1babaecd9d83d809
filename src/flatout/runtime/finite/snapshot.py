"""All that a training changes, as it was at one moment: copies in the host's memory, and the way back.

Parameters that optimizers hold, the optimizers' states, buffers by their names, loss scales; and parameters
that nobody holds, from when they are seen to change (a teacher that follows). Nothing is kept alive that the
script has let go. What is put back is put back in place and past autograd's count of versions: a graph that
is under way still runs, and whoever asks for it sees to it that its gradients are not used.
"""

import copy
import dataclasses
import math
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from flatout.levers.optimizer_states import wait_for_states
from flatout.runtime.finite.gradients import parameters_of, plain_values
from flatout.runtime.finite.ledger import Ledger

Path = tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Training:
    """What trains in this process: modules, each living optimizer with its ledger, scalers."""

    models: Sequence[Any]
    optimizers: Sequence[tuple[Ledger, Any]]
    scalers: Sequence[Any] = ()

    def held(self) -> list[Any]:
        """Parameters that optimizers update, each once."""
        found = {id(one): one for _, optimizer in self.optimizers for one in parameters_of(optimizer)}
        return list(found.values())

    def unheld(self) -> list[Any]:
        """Parameters of the modules that no optimizer has."""
        held = {id(one) for one in self.held()}
        found = {id(one): one for model in self.models for one in model.parameters()}
        return [one for key, one in found.items() if key not in held]

    def buffers(self) -> dict[Path, Any]:
        """By their module and name; a script may assign a new tensor to a name at any time."""
        found: dict[int, tuple[Path, Any]] = {}
        for model in self.models:
            for name, one in model.named_buffers():
                found.setdefault(id(one), ((model, name), one))
        return dict(found.values())

    def states(self, torch: Any) -> dict[Path, Any]:
        """The tensors of the optimizers' states, by where they are: some are made anew in every update."""
        found: dict[Path, Any] = {}
        for ledger, optimizer in self.optimizers:
            wait_for_states(optimizer)
            for key, state in optimizer.state.items():
                place = (id(ledger), id(key) if isinstance(key, torch.Tensor) else key)
                found.update(tensors_in(torch, state, place))
        return found


@dataclasses.dataclass(frozen=True)
class _Kept:
    """A tensor's values on the host, and where it was."""

    values: Any
    device: Any


class Snapshot:
    """A training at one moment."""

    def __init__(
        self, torch: Any, training: Training, changing: Iterable[Any], spare: "Snapshot | None"
    ) -> None:
        self._torch = torch
        # How many updates each optimizer had been through.
        self.updates = {ledger: ledger.updates for ledger, _ in training.optimizers}
        self._free = spare.tensors if spare is not None else {}
        # By its place: each host tensor, for the next snapshot to use again.
        self.tensors: dict[Path, Any] = {}
        self._values = [
            (weakref.ref(one), self._copied(one, (id(one),))) for one in (*training.held(), *changing)
        ]
        self._buffers = [
            (weakref.ref(model), name, self._copied(one, (id(model), name)))
            for (model, name), one in training.buffers().items()
        ]
        self._states = [
            (weakref.ref(optimizer), self._of_optimizer(optimizer), _numbers_of(optimizer))
            for _, optimizer in training.optimizers
        ]
        self._scales = [
            (weakref.ref(scaler), self._copied([scaler._scale, scaler._growth_tracker], (id(scaler),)))  # noqa: SLF001
            for scaler in training.scalers
        ]
        self._free = {}

    def put_back(self) -> None:
        """Everything as it was, as far as it is still there."""
        with self._torch.no_grad():
            for reference, kept in self._values:
                tensor = reference()
                if tensor is not None:
                    self._write(tensor, kept)
            self.put_back_buffers()
            for reference, states, numbers in self._states:
                optimizer = reference()
                if optimizer is not None:
                    self._put_back_states(optimizer, states)
                    _put_back_numbers(optimizer, numbers)
            for reference, kept in self._scales:
                scaler = reference()
                if scaler is not None:
                    for now, then in zip((scaler._scale, scaler._growth_tracker), kept, strict=True):  # noqa: SLF001
                        if self._is_tensor(now) and isinstance(then, _Kept):
                            self._write(now, then)

    def put_back_buffers(self) -> None:
        """The buffers alone, whatever tensor has their name now."""
        with self._torch.no_grad():
            for reference, name, kept in self._buffers:
                owner, last = _owner_of(reference(), name)
                if owner is not None and last in owner._buffers:  # noqa: SLF001
                    owner._buffers[last] = self._again(owner._buffers[last], kept)  # noqa: SLF001

    # Copying

    def _of_optimizer(self, optimizer: Any) -> list[tuple[Any, Any]]:
        """By parameter, or whatever else the optimizer calls them by."""
        wait_for_states(optimizer)
        return [
            (
                weakref.ref(key) if self._is_tensor(key) else key,
                self._copied(state, (id(optimizer), id(key) if self._is_tensor(key) else key)),
            )
            for key, state in optimizer.state.items()
        ]

    def _copied(self, value: Any, path: Path) -> Any:
        if self._is_tensor(value):
            into = self._free.pop(path, None)
            self.tensors[path] = values = self._on_host(own_values(value), into)
            return _Kept(values, value.device)
        if type(value) is dict:
            return {name: self._copied(one, (*path, name)) for name, one in value.items()}
        if type(value) in (list, tuple):
            return type(value)(self._copied(one, (*path, place)) for place, one in enumerate(value))
        return copy.deepcopy(value)

    def _on_host(self, values: Any, into: Any) -> Any:
        torch = self._torch
        if values.layout != torch.strided:
            return values.detach().cpu().clone()
        if into is None or into.shape != values.shape or into.dtype != values.dtype:
            into = torch.empty(values.shape, dtype=values.dtype, device="cpu")
        return into.copy_(values)

    # Back

    def _put_back_states(self, optimizer: Any, states: list[tuple[Any, Any]]) -> None:
        wait_for_states(optimizer)
        kept = {}
        for key, state in states:
            place = key() if isinstance(key, weakref.ref) else key
            if place is not None:
                kept[place] = state
        for place in [one for one in optimizer.state if one not in kept]:
            del optimizer.state[place]
        for place, state in kept.items():
            optimizer.state[place] = self._again(optimizer.state.get(place), state)

    def _again(self, now: Any, kept: Any) -> Any:
        """What was kept, in the tensors and containers that are there now wherever that can be."""
        if isinstance(kept, _Kept):
            if self._is_tensor(now) and _fits(now, kept.values):
                self._write(now, kept)
                return now
            return kept.values.to(kept.device, copy=True)
        if type(kept) is dict:
            before = now if type(now) is dict else {}
            found = {name: self._again(before.get(name), one) for name, one in kept.items()}
            if type(now) is not dict:
                return found
            now.clear()
            now.update(found)
            return now
        if type(kept) in (list, tuple):
            there = now if type(now) is type(kept) and len(now) == len(kept) else [None] * len(kept)
            again = [self._again(*both) for both in zip(there, kept, strict=True)]
            if type(now) is not list:
                return type(kept)(again)
            now[:] = again
            return now
        return copy.deepcopy(kept)

    def _write(self, tensor: Any, kept: _Kept) -> None:
        own_values(tensor.data).copy_(kept.values)

    def _is_tensor(self, value: Any) -> bool:
        return isinstance(value, self._torch.Tensor)


def _owner_of(model: Any, name: str) -> tuple[Any, str]:
    """The module that has a buffer of this name; None where the script has taken it out."""
    path, _, last = name.rpartition(".")
    try:
        return (model.get_submodule(path) if model is not None else None), last
    except AttributeError:
        return None, last


def own_values(tensor: Any) -> Any:
    """This rank's part, outside of any graph, each number once."""
    tensor = tensor.detach() if tensor.requires_grad else tensor
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    if str(tensor.layout) == "torch.strided" and 0 in tensor.stride():  # as made by expand()
        for dimension, stride in enumerate(tensor.stride()):
            if stride == 0 and tensor.shape[dimension] > 1:
                tensor = tensor.narrow(dimension, 0, 1)
    return tensor


def bytes_of(tensors: Iterable[Any]) -> int:
    """What they take on the host."""
    return sum(one.numel() * one.element_size() for one in map(own_values, tensors))


def norms_of(torch: Any, tensors: Sequence[Any]) -> list[float]:
    """By which it is seen that a tensor has changed; the host waits for it."""
    with torch.no_grad():
        found = [plain_values(torch, one.detach()) for one in tensors]
        norms = [None if one is None else _norm(torch, one) for one in found]
        return numbers_in(torch, norms)


def _norm(torch: Any, values: Any) -> Any:
    return torch.linalg.vector_norm(values, 1, dtype=torch.promote_types(values.dtype, torch.float32))


def numbers_in(torch: Any, scalars: Sequence[Any]) -> list[float]:
    """Read from the device in one go; 0 for what is None."""
    there = [one.reshape(()) for one in scalars if one is not None]
    numbers = iter(torch.stack([one.to(there[0].device) for one in there]).tolist() if there else ())
    return [0.0 if one is None else next(numbers) for one in scalars]


def _fits(now: Any, kept: Any) -> bool:
    values = own_values(now)
    return bool(values.shape == kept.shape and values.dtype == kept.dtype and values.layout == kept.layout)


def tensors_in(torch: Any, value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """All in dicts and lists, with their places."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, dict | list | tuple):
        for name, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from tensors_in(torch, one, (*path, name))


def _numbers_of(optimizer: Any) -> list[dict[str, float]]:
    """What an optimizer finds by itself and keeps in its groups (a step size, say)."""
    return [
        {name: value for name, value in group.items() if isinstance(value, float) and math.isfinite(value)}
        for group in optimizer.param_groups
    ]


def _put_back_numbers(optimizer: Any, numbers: list[dict[str, float]]) -> None:
    """Where they are spoiled, and only there: the rest is the schedule's, which goes on."""
    for group, kept in zip(optimizer.param_groups, numbers, strict=False):
        for name, value in kept.items():
            if isinstance(group.get(name), float) and not math.isfinite(group[name]):
                group[name] = value
