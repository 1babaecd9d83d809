"""Layers spread over devices: successive blocks of one model on successive devices of one process.

A hook before each placed module brings its inputs to its device. One device works at a time: this is for
models that no single device holds, not for speed.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from flatout.levers.blocks import repeated_blocks
from flatout.records.errors import CallerMistake
from flatout.runtime.parallel.again import Again
from flatout.runtime.parallel.nested import to
from flatout.runtime.parallel.parameters import as_spread
from flatout.runtime.parallel.wrapped import Job, Wrapped


@dataclasses.dataclass(frozen=True)
class LayersOptions:
    """What can be asked of it."""

    # In the order of the blocks; all GPUs of this machine if nothing is said.
    devices: Sequence[Any] | None = None
    # Of the blocks, how many are computed again in the backward pass.
    checkpoint: bool | float = False


class Layers(Wrapped):
    """A model of which each block is on some device."""

    @classmethod
    def wanted_alone(cls, options: LayersOptions) -> bool:  # noqa: ARG003
        """One process is all it is for."""
        return True

    def __init__(self, job: Job, options: LayersOptions) -> None:
        import torch

        _insist_on_one_process(job)
        devices = _devices(options, job)
        blocks = repeated_blocks(torch, [job.model])
        if len(blocks) < len(devices):
            raise CallerMistake(
                f"{type(job.model).__qualname__}: {len(blocks)} repeated blocks, for {len(devices)} devices",
                expected="at least one block for each device",
                remedy="give fewer devices",
            )
        # Which device each block and each other part has, by name: its place in the list.
        self.placement = _placement(job.model, blocks, len(devices))
        self._again = Again(job.model, options.checkpoint)
        self._hooks = [*_place(job.model, self.placement, devices), _output_to(job.model, devices[0])]
        _states_follow(job.optimizer)
        on = [at for name, at in self.placement.items() if job.model.get_submodule(name) in blocks]
        per_device = "/".join(str(on.count(at)) for at in range(len(devices)))
        super().__init__(
            job,
            reason=f"{len(blocks)} blocks on {len(devices)} device{'s' * (len(devices) > 1)} ({per_device}), "
            "one at work at a time" + self._again.words,
        )
        self.device = devices[0]

    def close(self) -> None:
        """Nothing is moved any more; parameters stay where they are."""
        self._again.undo()
        for hook in self._hooks:
            hook.remove()


def _insist_on_one_process(job: Job) -> None:
    if job.joined.count > 1:
        raise CallerMistake(
            f"strategy='layers' with {job.joined.count} processes",
            expected="one process, whose devices hold the layers",
            remedy="start it with plain python, or use 'fsdp' or 'pipeline' over processes",
        )


def _devices(options: LayersOptions, job: Job) -> list[Any]:
    import torch

    if options.devices is not None:
        return [torch.device(one) for one in options.devices]
    if job.joined.device.type == "cuda":
        return [torch.device("cuda", at) for at in range(torch.cuda.device_count())]
    return [job.joined.device]


def _placement(model: Any, blocks: list[Any], devices: int) -> dict[str, int]:
    """Modules that are moved as one, and their device: bytes as even as whole parts allow, in order."""
    parts = list(_parts(model, {id(block) for block in blocks}))
    whole = sum(_bytes(module) for _, module in parts)
    placed, held = {}, 0
    seen_blocks = 0
    for name, module in parts:
        size = _bytes(module)
        is_block = any(module is block for block in blocks)
        # By where its middle lies in the whole; at least a block is left for each device to come.
        at = min(devices - 1, int(devices * (held + size / 2) / max(whole, 1)))
        at = min(at, seen_blocks)
        left = len(blocks) - seen_blocks
        at = max(at, devices - left) if is_block else at
        placed[name] = at
        held += size
        seen_blocks += is_block
    return _ties_together(model, placed)


def _parts(model: Any, blocks: set[int]) -> Any:
    """Blocks, and whatever lies beside them, in the order in which the model lists them."""

    def below(module: Any, name: str) -> Any:
        for child_name, child in module.named_children():
            path = f"{name}.{child_name}".lstrip(".")
            holds_blocks = any(id(one) in blocks for one in child.modules())
            if id(child) in blocks or not holds_blocks:
                yield path, child
            else:
                yield from below(child, path)

    yield from below(model, "")


def _ties_together(model: Any, placed: dict[str, int]) -> dict[str, int]:
    """Parts that share a parameter are where the first of them is."""
    first: dict[int, int] = {}
    together = {}
    for name, at in placed.items():
        held = [id(one) for one in model.get_submodule(name).parameters()]
        together[name] = next((first[one] for one in held if one in first), at)
        first |= {one: together[name] for one in held if one not in first}
    return together


def _place(model: Any, placement: dict[str, int], devices: list[Any]) -> Any:
    held = set()
    for name, at in placement.items():
        module, device = model.get_submodule(name), devices[at]
        module.to(device)
        held |= {id(one) for one in module.modules()}
        yield module.register_forward_pre_hook(_brings_to(device), with_kwargs=True, prepend=True)
    # What the model has for itself, beside its parts, is where it begins.
    for module in model.modules():
        if id(module) not in held:
            for own in (module._parameters, module._buffers):  # noqa: SLF001
                for one in own.values():
                    if one is not None:
                        one.data = one.data.to(devices[0])


def _brings_to(device: Any) -> Any:
    def bring(_module: Any, args: Any, kwargs: Any) -> Any:
        return to(args, device), to(kwargs, device)

    return bring


def _output_to(model: Any, device: Any) -> Any:
    """Targets are where the batch is."""
    return model.register_forward_hook(lambda _module, _args, output: to(output, device))


def _states_follow(optimizer: Any) -> None:
    for parameter, state in optimizer.state.items() if optimizer is not None else ():
        for key, one in state.items():
            state[key] = as_spread(one, parameter)


def _bytes(module: Any) -> int:
    return sum(one.numel() * one.element_size() for one in module.parameters())
