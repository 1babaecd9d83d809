"""What a step changes before the optimizer does: gradients, buffers, random numbers; kept and put back.

Nothing here waits for the device.
"""

import contextlib
import copy
import gc
from collections import defaultdict
from typing import Any

from flatout.levers.optimizer_states import wait_for_states
from flatout.memory.splitting import tensors_of


def modules_of(module: Any) -> list[Any]:
    """A module and all below it, in no order of note; torch's own walk spells out every name on its way."""
    found: dict[int, Any] = {}
    left = [] if module is None else [module]
    while left:
        one = left.pop()
        if one is not None and id(one) not in found:
            found[id(one)] = one
            left.extend(one._modules.values())  # noqa: SLF001
    return list(found.values())


def parameters_in(modules: list[Any]) -> list[Any]:
    """All their parameters, each once."""
    every = [one for module in modules for one in module._parameters.values() if one is not None]  # noqa: SLF001
    return list({id(one): one for one in every}.values())


class Gradients:
    """The gradients that were there before.

    They are set aside, not copied: a step makes new ones, which are added when it is done. To put the old
    ones back takes no time, and they are the very same tensors.
    """

    def __init__(self, parameters: list[Any]) -> None:
        self._parameters = parameters
        self._earlier = [
            (parameter, parameter.grad) for parameter in parameters if parameter.grad is not None
        ]
        for parameter, _ in self._earlier:
            parameter.grad = None

    def clear(self) -> None:
        """Drop what a failed attempt has left."""
        for parameter in self._parameters:
            parameter.grad = None

    def put_back(self) -> None:
        """As it was before."""
        self.clear()
        for parameter, earlier in self._earlier:
            parameter.grad = earlier

    def add_up(self) -> None:
        """The earlier ones and the new ones together."""
        import torch

        with torch.no_grad():
            for parameter, earlier in self._earlier:
                new, parameter.grad = parameter.grad, None
                if new is None:
                    parameter.grad = earlier
                elif earlier.is_sparse:
                    parameter.grad = new + earlier
                else:
                    parameter.grad = earlier.add_(new)


class Buffers:
    """The buffers of modules that train, such as running statistics."""

    def __init__(self, modules: list[Any]) -> None:
        import torch

        homes = [one._buffers for one in modules if one.training and one._buffers]  # noqa: SLF001
        self._found = [
            (home, name, buffer) for home in homes for name, buffer in home.items() if buffer is not None
        ]
        alike: dict[Any, list[int]] = defaultdict(list)
        for place, (_, _, buffer) in enumerate(self._found):
            alike[buffer.device, buffer.dtype].append(place)
        self._copies: dict[int, Any] = {}
        # One launch for all of a kind, where torch can: a convolutional model has hundreds.
        all_at_once = getattr(torch, "_foreach_clone", None)
        with torch.no_grad():
            for places in alike.values():
                buffers = [self._found[place][2] for place in places]
                copies = all_at_once(buffers) if all_at_once else [buffer.clone() for buffer in buffers]
                self._copies.update(zip(places, copies, strict=True))

    def put_back(self) -> None:
        """As they were, in the very same tensors."""
        import torch

        with torch.no_grad():
            for place, (home, name, buffer) in enumerate(self._found):
                # Whether it changed or not: batch norm changes its own without a trace.
                if _can_change(buffer):
                    buffer.copy_(self._copies[place])
                home[name] = buffer


class RandomNumbers:
    """Where torch's random numbers stand: the CPU's, and those of the CUDA devices in use."""

    def __init__(self, parameters: list[Any]) -> None:
        import torch

        self._cpu = torch.get_rng_state()
        self._cuda: dict[int, Any] = {}
        # Not where CUDA was never used: asking would start it.
        cuda: Any = torch.cuda
        if cuda.is_initialized():
            used = {parameter.device.index for parameter in parameters if parameter.is_cuda}
            for index in used | {cuda.current_device()}:
                self._cuda[index] = cuda.get_rng_state(index)

    def put_back(self) -> None:
        """As if none had been drawn."""
        import torch

        torch.set_rng_state(self._cpu)
        for index, state in self._cuda.items():
            torch.cuda.set_rng_state(state, index)


class Before:
    """All that one step changes."""

    def __init__(self, parameters: list[Any], modules: list[Any]) -> None:
        self._random = RandomNumbers(parameters)
        self._buffers = Buffers(modules)
        self.gradients = Gradients(parameters)

    def begin_again(self) -> None:
        """Ready for another attempt."""
        self.gradients.clear()
        self._buffers.put_back()
        self._random.put_back()

    def leave(self) -> None:
        """Nothing happened, but for random numbers that were drawn."""
        self._buffers.put_back()
        self.gradients.put_back()


class Training:
    """Everything that whole training steps change: parameters, optimizer, buffers, modes, random numbers.

    Copies lie in host memory: the device's is about to be measured.
    """

    def __init__(self, parameters: list[Any], modules: list[Any], optimizer: Any) -> None:
        self._random = RandomNumbers(parameters)
        self._modes = [(one, one.training) for one in modules]
        # All of them: an evaluation may change what training does not.
        self._homes = [(one._buffers, dict(one._buffers)) for one in modules]  # noqa: SLF001
        buffers = [buffer for _, home in self._homes for buffer in home.values() if buffer is not None]
        self._optimizer = optimizer
        held: list[Any] = []
        if optimizer is not None:
            wait_for_states(optimizer)
            kept = [optimizer.param_groups, dict(optimizer.state)]
            held = list(tensors_of([kept[0], *optimizer.state.values()]))
            # Containers are copied as deep as they go, tensors stay the same.
            same = {id(tensor): tensor for tensor in (*held, *optimizer.state)}
            self._groups, self._states = copy.deepcopy(kept, same)
        every = {id(tensor): tensor for tensor in (*parameters, *buffers, *held)}
        self._copies = [(tensor, tensor.detach().to("cpu", copy=True)) for tensor in every.values()]
        self.gradients = Gradients(parameters)

    def put_back(self) -> None:
        """Bit for bit as it was, in the very same tensors."""
        import torch

        with torch.no_grad():
            for tensor, kept in self._copies:
                if _can_change(tensor):
                    tensor.copy_(kept)
        for home, found in self._homes:
            home.clear()
            home.update(found)
        for one, mode in self._modes:
            one.training = mode
        if self._optimizer is not None:
            for group, values in zip(self._optimizer.param_groups, self._groups, strict=True):
                group.clear()
                group.update(values)
            self._optimizer.state.clear()
            self._optimizer.state.update(self._states)
        self.gradients.put_back()
        self._random.put_back()


def _can_change(tensor: Any) -> bool:
    """Torch writes to no tensor that was expanded."""
    return tensor.is_sparse or all(
        stride or size < 2 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
    )


def free_what_failed() -> None:
    """Give the device what an attempt that ran out has left: once, before the next."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()  # does nothing where CUDA was never used
    with contextlib.suppress(Exception):
        if torch.backends.mps.is_available():
            torch.mps.empty_cache()
