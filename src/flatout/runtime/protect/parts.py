"""What was found, in parts that a checkpoint can hold: each by the name of the way to it."""

from collections.abc import Callable
from typing import Any

from flatout.runtime.checkpoint.own_numbers import put_back_states, states_of
from flatout.runtime.finite.gradients import parameters_of
from flatout.runtime.protect.found import Found

# Outputs and the like beyond this are not worth their time: a loop looks at them once, if at all.
_LARGEST_LOOSE = 256 << 20


class _Bag:
    def __init__(self, state: Callable[[], dict[str, Any]], load: Callable[[dict[str, Any]], None]) -> None:
        self.state_dict = state
        self.load_state_dict = load


class Bags:
    """Modules, optimizers, what else has a state, and loose tensors."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._found = Found()
        self._optimizers: list[Any] = []
        # Names that a checkpoint has, and that are not here.
        self.missing: list[str] = []

    def hold(self, found: Found, optimizers: list[Any], is_plain: Callable[[Any], bool]) -> list[str]:
        """These, from now on; names of those that cannot be saved."""
        self._found, self._optimizers = found, optimizers
        known = {id(one) for one in optimizers}
        found.stateful = {name: one for name, one in found.stateful.items() if id(one) not in known}
        left_out = [name for name, one in found.stateful.items() if not is_plain(one.state_dict())]
        for name in left_out:
            del found.stateful[name]
        loose = {
            id(one): f"optimizer {at}, parameter {number}"
            for at, optimizer in enumerate(optimizers)
            for number, one in enumerate(parameters_of(optimizer))
        }
        for one in found.modules.values():
            for held in one.parameters():
                loose.pop(id(held), None)
        by_id = {id(one): one for optimizer in optimizers for one in parameters_of(optimizer)}
        found.tensors = {
            **{name: one for name, one in found.tensors.items() if id(one) not in loose and _is_worth(one)},
            **{name: by_id[key] for key, name in loose.items()},
        }
        return left_out

    def parts(self) -> dict[str, Any]:
        """For a checkpointer. Optimizers each for themselves: their states may be spread over ranks."""
        return {
            **{f"optimizer_{at}": one for at, one in enumerate(self._optimizers)},
            "modules": _Bag(self._modules, self._load_modules),
            "others": _Bag(self._others, self._load_others),
        }

    def _modules(self) -> dict[str, Any]:
        return {name: _tensors_of(module) for name, module in self._found.modules.items()}

    def _load_modules(self, state: dict[str, Any]) -> None:
        for name, tensors in state.items():
            module = self._found.modules.get(name)
            own = _tensors_of(module) if module is not None else {}
            for key, value in tensors.items():
                if key in own and own[key].shape == value.shape:
                    own[key].detach().copy_(value)
                else:
                    self.missing.append(f"{name}.{key}")

    def _others(self) -> dict[str, Any]:
        states = {
            name: {"state": one.state_dict(), "found_inf": self._found_inf(one)}
            for name, one in self._found.stateful.items()
        }
        generators = self._found.generators
        numbers = zip(generators, states_of(self._torch, [*generators.values()]), strict=True)
        return {**states, **{name: {"numbers": one} for name, one in numbers}}

    def _load_others(self, state: dict[str, Any]) -> None:
        for name, saved in state.items():
            if "state" in saved and name in self._found.stateful:
                one = self._found.stateful[name]
                # Loading is not always harmless: loops of Lightning would take it for a restart.
                if not _is_the_same(one.state_dict(), saved["state"]):
                    one.load_state_dict(saved["state"])
                self._put_found_inf(self._found.stateful[name], saved["found_inf"])
            elif "numbers" in saved and name in self._found.generators:
                put_back_states(self._torch, [self._found.generators[name]], [saved["numbers"]])
            else:
                self.missing.append(name)

    def _found_inf(self, scaler: Any) -> dict[str, Any]:
        """Of a GradScaler between `step` and `update`: what it has found, which its own state leaves out."""
        if not isinstance(scaler, self._torch.amp.GradScaler) or not scaler.is_enabled():
            return {}
        found = {}
        for at, optimizer in enumerate(self._optimizers):
            state = scaler._per_optimizer_states.get(id(optimizer))  # noqa: SLF001
            if state is not None:
                each = {str(device): one.item() for device, one in state["found_inf_per_device"].items()}
                found[str(at)] = {"stage": state["stage"].name, "each": each}
        return found

    def _put_found_inf(self, scaler: Any, found: dict[str, Any]) -> None:
        for at, state in found.items():
            own = scaler._per_optimizer_states[id(self._optimizers[int(at)])]  # noqa: SLF001
            own["stage"] = type(own["stage"])[state["stage"]]
            own["found_inf_per_device"] = {
                self._torch.device(device): self._torch.full((), value, device=device)
                for device, value in state["each"].items()
            }

    def tensors(self) -> dict[str, Any]:
        """Those that variables hold, of each rank its own."""
        return {name: one.detach() for name, one in self._found.tensors.items()}

    def load_tensors(self, state: dict[str, Any]) -> None:
        """Into tensors that are somebody's own; a part of a larger one may be a part of the data."""
        for name, value in state.items():
            own = self._found.tensors.get(name)
            if own is None or own.shape != value.shape:
                continue  # a variable that the loop has not set yet, or that another batch will fill
            # A sum may stand in what it was summed from: a larger storage alone makes nothing a part of it.
            is_whole = own.untyped_storage().nbytes() == value.numel() * value.element_size()
            if is_whole or not own._is_view():  # noqa: SLF001
                own.detach().copy_(value)


def _is_the_same(now: Any, then: Any) -> bool:
    """Bit for bit, where that can be told."""
    if isinstance(now, dict):
        same_keys = isinstance(then, dict) and now.keys() == then.keys()
        return same_keys and all(_is_the_same(one, then[key]) for key, one in now.items())
    if isinstance(now, list | tuple):
        as_many = isinstance(then, list | tuple) and len(now) == len(then)
        return as_many and all(map(_is_the_same, now, then))
    if hasattr(now, "untyped_storage"):
        return bool(type(now) is type(then) and now.dtype == then.dtype and now.equal(then.to(now.device)))
    return type(now) in _COMPARED and type(now) is type(then) and bool(now == then)


_COMPARED = (int, float, bool, str, bytes, type(None))


def _tensors_of(module: Any) -> dict[str, Any]:
    return {
        **{f"{name}": one.detach() for name, one in module.named_parameters()},
        **{f"{name}": one.detach() for name, one in module.named_buffers()},
    }


def _is_worth(tensor: Any) -> bool:
    return bool(
        tensor.numel() * tensor.element_size() <= _LARGEST_LOOSE and tensor.layout is _strided(tensor)
    )


def _strided(tensor: Any) -> Any:
    import torch

    return torch.strided if not tensor.is_meta else None
