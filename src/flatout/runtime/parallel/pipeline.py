"""Pipeline parallel: successive blocks on successive ranks, micro-batches travelling through them.

A stage runs the model's own forward, as it was written, and leaves out what is not its own: blocks before it
are skipped, its first block reads what the stage before has sent, and forward is left after its last block.
What lies before the blocks (masks, positions) is worked out on each stage from the batch itself, but layers
with parameters that belong to another stage answer with zeros. That this computes what the model computes is
proven on a sample before anything is divided.
"""

import dataclasses
from typing import Any, Literal

from flatout.levers.blocks import repeated_blocks
from flatout.records.errors import CallerMistake
from flatout.runtime.parallel.nested import changed, tensors_in, to
from flatout.runtime.parallel.parameters import follow, from_first, layout_of, named
from flatout.runtime.parallel.wrapped import Job, Wrapped


@dataclasses.dataclass(frozen=True)
class PipelineOptions:
    """What can be asked of it."""

    # Parts of a batch that travel one after the other; twice the stages if nothing is said.
    microbatches: int | None = None
    # 1F1B keeps the activations of as many parts as there are stages, GPipe those of all.
    schedule: Literal["1f1b", "gpipe"] = "1f1b"


class Pipeline(Wrapped):
    """One stage of a model."""

    data = "alike"

    def __init__(self, job: Job, options: PipelineOptions) -> None:
        # torch is loaded with it.
        from flatout.runtime.parallel.stages import Stage, let_go, owners, proven, seen

        joined = job.joined
        self._microbatches = options.microbatches or 2 * joined.count
        self._schedule_name = options.schedule
        blocks = _insist_on_blocks(job, options)
        layout = layout_of(job.model, job.optimizer)
        from_first(job.model, joined)
        part = first_part(job.sample, self._microbatches)
        cuts = _cuts(blocks, joined.count)
        forward = seen(job.model, blocks, part)
        proven(job.model, blocks, cuts, forward, part)
        self._owners = owners(job.model, blocks, cuts, forward)
        # The names that the model's state has, and parameters that have several by each of them.
        self._stage_of_name = _stage_of_name(job.model, self._owners)
        let_go(job.model, self._owners, joined.rank)
        _stay(job, joined.device)
        follow(job.optimizer, layout, {n: p for n, p in named(job.model).items() if not p.is_meta})
        self.stage = Stage(job.model, blocks, cuts[joined.rank], forward)
        self._shared = _shared_groups(job.model, self._owners, joined.rank)
        self._part = part
        self._made_schedule: Any = None
        self._loss_fn: Any = None
        sizes = "/".join(str(cut.end - cut.begin) for cut in cuts)
        super().__init__(
            job,
            model=self.stage,
            reason=f"{len(blocks)} blocks are divided over {joined.count} stages ({sizes}); batches go in "
            f"{self._microbatches} parts by {options.schedule}; proven on a sample",
        )

    def train_step(self, batch: Any, target: Any, loss_fn: Any) -> Any:
        """Forward and backward of all parts; the mean of their losses, on all ranks."""
        import torch
        import torch.distributed as dist

        joined = self.joined
        # Without gaps: torch 2.10 compares strides, too.
        batch = changed(batch, lambda one: one.to(joined.device).contiguous())
        self._insist_on_shape(batch)
        self._loss_fn = loss_fn
        losses: list[Any] = []
        last = joined.rank == joined.count - 1
        more: dict[str, Any] = {"target": to(target, joined.device), "losses": losses} if last else {}
        args = _positional(batch) if joined.rank == 0 else ()
        earlier = self._set_shared_aside()
        self._schedule.step(*args, **_by_keyword(batch, first=joined.rank == 0), **more)
        self._sum_shared(earlier)
        loss = torch.zeros((), device=joined.device)
        for one in losses:
            loss += one.detach()
        dist.broadcast(loss, joined.count - 1)
        return loss

    @property
    def _schedule(self) -> Any:
        """Made once: stages agree anew with each. The loss function may be another in every step."""
        from torch.distributed import pipelining

        if self._made_schedule is None:
            joined = self.joined
            stage = pipelining.PipelineStage(self.stage, joined.rank, joined.count, joined.device)
            kind: Any = pipelining.Schedule1F1B if self._schedule_name == "1f1b" else pipelining.ScheduleGPipe
            # torch would scale gradients at the end, and with them those of earlier steps.
            self._made_schedule = kind(stage, self._microbatches, loss_fn=self._loss_of, scale_grads=False)
        return self._made_schedule

    def _loss_of(self, output: Any, target: Any) -> Any:
        return self._loss_fn(self.stage.form(output), target) / self._microbatches

    def _set_shared_aside(self) -> list[Any]:
        """Gradients of earlier steps that all stages have got already."""
        earlier = [parameter.grad for parameter, _ in self._shared]
        for parameter, _ in self._shared:
            parameter.grad = None
        return earlier

    def _sum_shared(self, earlier: list[Any]) -> None:
        """Parameters that several stages hold get the gradients of all of them."""
        import torch
        import torch.distributed as dist

        for (parameter, group), before in zip(self._shared, earlier, strict=True):
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad, group=group)
            if before is not None:
                parameter.grad += before

    def _insist_on_shape(self, batch: Any) -> None:
        """Stages have agreed on what travels between them."""
        part = first_part(batch, self._microbatches)
        expected = [tuple(one.shape) for one in tensors_in(self._part)]
        if [tuple(one.shape) for one in tensors_in(part)] != expected:
            count = self._microbatches
            raise CallerMistake(
                f"a batch of {[tuple(one.shape) for one in tensors_in(batch)]}, "
                f"in {count} parts of {[tuple(one.shape) for one in tensors_in(part)]}",
                expected=f"parts of {expected}, as in the sample",
                remedy="DataLoader(..., drop_last=True), and samples of one length",
            )

    def mine(self) -> dict[str, Any]:
        """What this stage has of the model's state; what several have, the first of them gives."""
        state = self.bare.state_dict()
        rank = self.joined.rank
        return {name: one for name, one in state.items() if self._stage_of_name[name] == rank}

    def kept(self) -> dict[str, Any]:
        """All that this stage has."""
        return {name: one for name, one in self.bare.state_dict().items() if not one.is_meta}

    @property
    def spread_by_name(self) -> bool:
        """Each stage has its own blocks."""
        return True

    def held_by(self) -> dict[str, int]:
        """Tied weights, for instance."""
        return {name: len(self._owners[name]) for name in named(self.bare) if len(self._owners[name]) > 1}

    def close(self) -> None:
        """Blocks compute as they did; what was let go stays away."""
        self.stage.undo()


def _insist_on_blocks(job: Job, options: PipelineOptions) -> list[Any]:
    import torch

    blocks = repeated_blocks(torch, [job.model])
    if len(blocks) < job.joined.count:
        raise CallerMistake(
            f"{type(job.model).__qualname__}: {len(blocks)} repeated blocks, and {job.joined.count} ranks",
            expected="at least one block for each rank: a pipeline is cut between repeated blocks",
            remedy="use strategy='fsdp', which needs none" if not blocks else "start fewer ranks",
        )
    if options.schedule not in ("1f1b", "gpipe"):
        raise CallerMistake(
            f"schedule={options.schedule!r}", expected="'1f1b' or 'gpipe'", remedy="choose one of these"
        )
    if options.schedule == "1f1b" and (options.microbatches or job.joined.count) < job.joined.count:
        raise CallerMistake(
            f"microbatches={options.microbatches} for {job.joined.count} stages",
            expected="at least as many parts as stages, by 1f1b",
            remedy=f"microbatches={2 * job.joined.count}, or schedule='gpipe'",
        )
    if job.sample is None:
        raise CallerMistake(
            "a pipeline without a sample",
            expected="sample=..., what the model is called with: stages must know what travels between them",
            remedy="sample=next(iter(loader))[0], a tensor, a tuple of arguments or a dict of keywords",
        )
    return blocks


def _cuts(blocks: list[Any], stages: int) -> list[Any]:
    """Where each stage begins and ends: as even as whole blocks allow, the middle ones taking more."""
    from flatout.runtime.parallel.stages import Cut

    whole, more = divmod(len(blocks), stages)
    # The ends have embeddings and heads beside their blocks.
    longer = sorted(range(stages), key=lambda at: abs(at - (stages - 1) / 2))[:more]
    cuts, begin = [], 0
    for at in range(stages):
        end = begin + whole + (at in longer)
        cuts.append(Cut(begin, end, is_first=at == 0, is_last=at == stages - 1))
        begin = end
    return cuts


def first_part(batch: Any, parts: int) -> Any:
    """The first of so many parts; raises CallerMistake where it cannot be divided evenly."""

    def part(tensor: Any) -> Any:
        if tensor.dim() == 0 or len(tensor) % parts or not len(tensor):
            raise CallerMistake(
                f"a batch of {len(tensor) if tensor.dim() else 'no'} samples, in {parts} parts",
                expected=f"a multiple of {parts}",
                remedy="choose another batch size, or microbatches=...; the loader needs drop_last=True",
            )
        return tensor[: len(tensor) // parts]

    return changed(batch, part)


def _positional(batch: Any) -> tuple[Any, ...]:
    if isinstance(batch, dict):
        return ()
    return tuple(batch) if isinstance(batch, tuple | list) else (batch,)


def _by_keyword(batch: Any, *, first: bool) -> dict[str, Any]:
    """The batch for stages that do not begin with it; keywords go to all."""
    if isinstance(batch, dict):
        return dict(batch)
    return {} if first else {f"argument_{at}": one for at, one in enumerate(_positional(batch))}


def _stage_of_name(model: Any, owned: dict[str, tuple[int, ...]]) -> dict[str, int]:
    held = {**named(model), **dict(model.named_buffers())}
    by_id = {id(one): owned[name] for name, one in held.items()}
    every = (
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    )
    names = {name: by_id[id(one)][0] for name, one in every}
    return {name: names.get(name, 0) for name in model.state_dict()}


def _stay(job: Job, device: Any) -> None:
    """What this stage has, on its device."""
    for module in job.model.modules():
        for name, one in module._parameters.items():  # noqa: SLF001
            if one is not None and not one.is_meta:
                one.data = one.data.to(device)
                module._parameters[name] = one  # noqa: SLF001
        for name, one in module._buffers.items():  # noqa: SLF001
            if one is not None:
                module._buffers[name] = one.to(device)  # noqa: SLF001


def _shared_groups(model: Any, owned: dict[str, tuple[int, ...]], rank: int) -> list[tuple[Any, Any]]:
    """Parameters that this stage shares with others, and the group of those. All ranks make all groups."""
    import torch.distributed as dist

    groups: dict[tuple[int, ...], Any] = {}
    shared = []
    for name, parameter in named(model).items():
        stages = owned[name]
        if len(stages) == 1 or not parameter.requires_grad:
            continue
        if stages not in groups:
            groups[stages] = dist.new_group(list(stages))
        if rank in stages:
            shared.append((parameter, groups[stages]))
    return shared
