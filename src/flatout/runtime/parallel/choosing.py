"""Which strategy, where the caller leaves it open: one rule, told with its figures."""

import dataclasses
from typing import Any

from flatout.hardware.host import available_memory_bytes
from flatout.records.words import memory_size, percent
from flatout.runtime.parallel.joining import Joined

# Of a device's memory, what parameters, gradients and optimizer states may take: activations need the rest.
_FOR_STATES = 0.6
# Tensors of a parameter's size that optimizers keep once they have made a step.
_STATES = {"SGD": 0, "Adagrad": 1, "Adafactor": 0, "Adadelta": 2, "RMSprop": 1, "Rprop": 2, "Muon": 1}
_STATES_OF_MOST = 2


@dataclasses.dataclass(frozen=True)
class Chosen:
    """A strategy, and why."""

    strategy: str
    reason: str


def choose(model: Any, optimizer: Any, joined: Joined, memory_bytes: int | None = None) -> Chosen:
    """DDP where a device holds all states of the training and room to work, else FSDP.

    Alone, layers over this machine's GPUs where one does not hold them and there are several.
    """
    needs = states_bytes(model, optimizer)
    has = memory_bytes if memory_bytes is not None else _memory_of(joined)
    fits = needs <= _FOR_STATES * has
    words = (
        f"parameters, gradients and optimizer states take {memory_size(needs)}, "
        f"{'within' if fits else 'over'} {percent(_FOR_STATES)} of a device's {memory_size(has)}"
    )
    if joined.count > 1:
        return Chosen("ddp" if fits else "fsdp", words)
    several = joined.device.type == "cuda" and _gpus() > 1
    return Chosen("layers" if several and not fits else "ddp", words)


def states_bytes(model: Any, optimizer: Any) -> int:
    """What a training keeps of a model between two steps, activations aside."""
    whole = sum(one.numel() * one.element_size() for one in (*model.parameters(), *model.buffers()))
    trained = sum(one.numel() * one.element_size() for one in model.parameters() if one.requires_grad)
    return int(whole + trained * (1 + _states_of(optimizer)))


def _states_of(optimizer: Any) -> int:
    if optimizer is None:
        return _STATES_OF_MOST
    name = type(optimizer).__name__
    if name == "SGD":
        return int(any(group.get("momentum") for group in optimizer.param_groups))
    return _STATES.get(name, _STATES_OF_MOST)


def _memory_of(joined: Joined) -> int:
    import torch

    if joined.device.type == "cuda":
        return int(torch.cuda.get_device_properties(joined.device).total_memory)
    # Ranks of one machine share it; how many are elsewhere, nobody tells a rank without torchrun.
    return available_memory_bytes() // joined.local_count


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()
