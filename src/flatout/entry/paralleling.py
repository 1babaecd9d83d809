"""`flatout.parallel`: a model, its optimizer and its loader on several processes or devices, by strategy."""

import dataclasses
import sys
from typing import Any

from flatout.records.errors import UnknownName
from flatout.runtime.parallel.again import Again
from flatout.runtime.parallel.choosing import choose
from flatout.runtime.parallel.data import place
from flatout.runtime.parallel.ddp import Ddp, DdpOptions
from flatout.runtime.parallel.fsdp import Fsdp, FsdpOptions
from flatout.runtime.parallel.joining import Joined, join
from flatout.runtime.parallel.layers import Layers, LayersOptions
from flatout.runtime.parallel.parameters import layout_of, to_device
from flatout.runtime.parallel.pipeline import Pipeline, PipelineOptions
from flatout.runtime.parallel.tensor import Tensor, TensorOptions
from flatout.runtime.parallel.world import World
from flatout.runtime.parallel.wrapped import Job, Wrapped, insist_on_fresh

__all__ = ["World", "parallel"]

_STRATEGIES: dict[str, tuple[type[Wrapped], type]] = {
    "ddp": (Ddp, DdpOptions),
    "fsdp": (Fsdp, FsdpOptions),
    "tensor": (Tensor, TensorOptions),
    "pipeline": (Pipeline, PipelineOptions),
    "layers": (Layers, LayersOptions),
}


@dataclasses.dataclass(frozen=True)
class _AutoOptions:
    """What all strategies that may be chosen understand."""

    checkpoint: bool | float = False


def parallel(
    strategy: str = "auto",
    *,
    model: Any,
    optimizer: Any = None,
    loader: Any = None,
    sample: Any = None,
    device: Any = None,
    timeout_s: float = 600.0,
    keep_batch: bool = False,
    shard_iterable: bool = False,
    even_alone: bool = False,
    **options: Any,
) -> World:
    """A model, its optimizer and its loader, ready to train on all ranks that torchrun started, or on one.

        with flatout.parallel("fsdp", model=model, optimizer=optimizer, loader=loader) as world:
            for inputs, targets in world.loader:
                inputs, targets = inputs.to(world.device), targets.to(world.device)
                loss = loss_of(world.model(inputs), targets)
                loss.backward()
                world.clip(1.0)
                world.optimizer.step()
                world.optimizer.zero_grad()
            world.save("model.pt")                       # whole, from the first rank, for torch.load

    Started by `torchrun --nproc-per-node 4 train.py`, four processes train together; by `python train.py`,
    the same code trains alone, with nothing wrapped. Strategies:

    - "ddp": each rank holds the model, gradients are averaged. Options: static_graph, find_unused,
      compress="bf16" (gradients travel rounded), checkpoint.
    - "fsdp": parameters, gradients and optimizer states are spread, block by block. Options:
      precision="bf16", reshard, offload, checkpoint.
    - "tensor": the linear layers of each block are divided, and a block is compared with the original before
      it counts. Options: plan={"attention.q": "column", ...}, partly, checkpoint.
    - "pipeline": successive blocks on successive ranks; needs a `sample`, and trains by `world.train_step`.
      Options: microbatches, schedule ("1f1b" or "gpipe").
    - "layers": successive blocks on successive devices of one process. Options: devices, checkpoint.
    - "auto": "ddp" where parameters, gradients and optimizer states take at most 60 % of a device's memory,
      else "fsdp"; `world.reason` says so in figures.

    `checkpoint=True`, or a share of the blocks, has them computed again in the backward pass. Make the
    optimizer before, of model.parameters(), and schedulers after, of `world.optimizer`.

    The loader is changed in place until the end: ranks read different samples (or the same ones, where they
    share each batch), shuffled anew each epoch. Its batch size is each rank's; keep_batch=True divides it, so
    that all ranks together take the batches that one process would. An IterableDataset is refused, unless
    shard_iterable=True lets each rank take every n-th sample.

    `sample` is what the model is called with: a tensor, a tuple of arguments or a dict of keywords. Where
    ranks wait for each other, they do so for `timeout_s` at most, and say who failed. even_alone=True wraps
    one process, too.
    """
    known = _AutoOptions if strategy == "auto" else _known(strategy)[1]
    asked = _options(strategy, known, options)
    insist_on_fresh(model)
    wanted = strategy != "auto" and _known(strategy)[0].wanted_alone(asked)
    joined = join(
        timeout_s=timeout_s, device=device, even_alone=even_alone or (wanted and strategy != "layers")
    )
    try:
        reason = ""
        if strategy == "auto":
            chosen = choose(model, optimizer, joined)
            strategy, reason = chosen.strategy, chosen.reason
            asked = _options(strategy, _known(strategy)[1], options)
        layout, names = layout_of(model, optimizer), tuple(model.state_dict())
        job = Job(joined, model, optimizer, sample)
        kind: Any = _known(strategy)[0]
        wrap = joined.count > 1 or even_alone or kind.wanted_alone(asked)
        wrapped = kind(job, asked) if wrap else _Alone(job, getattr(asked, "checkpoint", False))
        placed = place(loader, joined, wrapped.data, shard_iterable=shard_iterable, keep_batch=keep_batch)
    except BaseException as error:
        joined.tell_of_failure(error)
        joined.leave(failed=True)
        raise
    return World(strategy, wrapped, placed, reason=reason, loader=loader, layout=layout, names=names)


class _Alone(Wrapped):
    """One process: the model as it is, on its device."""

    def __init__(self, job: Job, checkpoint: bool | float) -> None:
        to_device(job.model, job.optimizer, job.joined.device)
        self._again = Again(job.model, checkpoint)
        super().__init__(job, reason=_why_alone(job.joined) + self._again.words)

    def close(self) -> None:
        """Blocks compute as they did."""
        self._again.undo()


def _why_alone(joined: Joined) -> str:
    import torch

    gpus = torch.cuda.device_count() if joined.device.type == "cuda" else 1
    script = sys.argv[0] or "train.py"
    more = f"; for all {gpus} GPUs: torchrun --nproc-per-node {gpus} {script}" if gpus > 1 else ""
    return f"one process: nothing to divide{more}"


def _known(strategy: str) -> tuple[type[Wrapped], type]:
    if strategy not in _STRATEGIES:
        raise UnknownName("strategy", strategy, ("auto", *_STRATEGIES))
    return _STRATEGIES[strategy]


def _options(strategy: str, kind: type, given: dict[str, Any]) -> Any:
    valid = [field.name for field in dataclasses.fields(kind)]
    for name in given:
        if name not in valid:
            raise UnknownName(f"option of {strategy!r}", name, valid)
    return kind(**given)
