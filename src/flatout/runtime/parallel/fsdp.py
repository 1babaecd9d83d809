"""FSDP2: parameters, gradients and optimizer states are spread over the ranks, block by block."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any, Literal

from flatout.levers.blocks import repeated_blocks
from flatout.records.errors import CallerMistake, EnvironmentProblem
from flatout.runtime.parallel.again import Again
from flatout.runtime.parallel.parameters import follow, from_first, layout_of, named
from flatout.runtime.parallel.wrapped import Job, Wrapped


@dataclasses.dataclass(frozen=True)
class FsdpOptions:
    """What can be asked of it."""

    # Blocks compute in bf16 from parameters that stay as they are; gradients are summed in float32.
    precision: Literal["bf16"] | None = None
    # Whether a block's parameters are let go between forward and backward; a number: kept by so few ranks.
    reshard: bool | int = True
    # Parameters, gradients and optimizer states wait on the host.
    offload: bool = False
    # Of the blocks, how many are computed again in the backward pass.
    checkpoint: bool | float = False


class Fsdp(Wrapped):
    """A model under fully_shard."""

    data = "apart"

    @classmethod
    def wanted_alone(cls, options: FsdpOptions) -> bool:
        """Half precision, and parameters on the host, are worth it on one GPU, too."""
        return options.precision is not None or options.offload

    def __init__(self, job: Job, options: FsdpOptions) -> None:
        import torch

        fully_shard, more = _asked_for(job, options)
        from_first(job.model, job.joined)
        blocks = repeated_blocks(torch, [job.model])
        layout = layout_of(job.model, job.optimizer)
        self._again = Again(job.model, options.checkpoint)
        for block in blocks:
            fully_shard(block, reshard_after_forward=options.reshard, mp_policy=_policy(options), **more)
        # The root's own parameters are needed at both ends of a step: they stay between.
        fully_shard(job.model, mp_policy=_policy(options, output_dtype=torch.float32), **more)
        _buffers_to(job.model, job.joined.device)
        follow(job.optimizer, layout, named(job.model))
        units = f"{len(blocks)} blocks and the rest" if blocks else "as one piece: no blocks repeat"
        super().__init__(
            job,
            reason="parameters, gradients and optimizer states are spread over "
            f"{job.joined.count} ranks, {units}"
            + (", on the host" if options.offload else "")
            + (", computing in bf16" if options.precision else "")
            + self._again.words,
        )

    @contextlib.contextmanager
    def accumulating(self, *, last: bool) -> Iterator[None]:
        """Without `last`, gradients stay whole on each rank, which takes their memory, and do not travel."""
        self.model.set_is_last_backward(last)
        self.model.set_requires_gradient_sync(last)
        try:
            yield
        finally:
            self.model.set_is_last_backward(True)
            self.model.set_requires_gradient_sync(True)

    def close(self) -> None:
        """Blocks compute as they did; parameters stay spread."""
        self._again.undo()


def _asked_for(job: Job, options: FsdpOptions) -> tuple[Any, dict[str, Any]]:
    """torch's function, and the arguments that all its calls have alike."""
    import torch

    fsdp: Any = __import__("torch.distributed.fsdp", fromlist=["fully_shard"])
    if not hasattr(fsdp, "fully_shard"):
        raise EnvironmentProblem(
            f"torch {torch.__version__} has no torch.distributed.fsdp.fully_shard",
            expected="torch 2.10 or newer",
            remedy="install a newer torch, or use strategy='ddp'",
        )
    if any(one.is_meta for one in job.model.parameters()):
        raise CallerMistake(
            "a model on the meta device, whose parameters have no values",
            expected="a model with values, which may lie on the host: blocks travel one by one",
            remedy="build it on the CPU",
        )
    from torch.distributed.device_mesh import init_device_mesh

    more: dict[str, Any] = {"mesh": init_device_mesh(job.joined.device.type, (job.joined.count,))}
    if options.offload:
        more["offload_policy"] = fsdp.CPUOffloadPolicy(pin_memory=job.joined.device.type == "cuda")
    return fsdp.fully_shard, more


def _policy(options: FsdpOptions, **more: Any) -> Any:
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy

    if options.precision is None:
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, **more)


def _buffers_to(model: Any, device: Any) -> None:
    """Where parameters wait on the host, buffers must not."""
    for module in model.modules():
        for name, buffer in module._buffers.items():  # noqa: SLF001
            if buffer is not None:
                module._buffers[name] = buffer.to(device)  # noqa: SLF001
