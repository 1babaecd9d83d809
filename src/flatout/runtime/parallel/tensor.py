"""Tensor parallel: the linear layers of each repeated block are divided over the ranks, and proven right."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from flatout.levers.blocks import repeated_blocks
from flatout.records.errors import CallerMistake
from flatout.runtime.parallel.again import Again
from flatout.runtime.parallel.calling import Called, called_with
from flatout.runtime.parallel.pairing import Found, find_pairs
from flatout.runtime.parallel.parameters import Layout, follow, from_first, layout_of, named, to_device
from flatout.runtime.parallel.proving import divided_as_proven
from flatout.runtime.parallel.wrapped import Job, Wrapped


@dataclasses.dataclass(frozen=True)
class TensorOptions:
    """What can be asked of it."""

    # Linear layers of a block by name: "column" or "row", or one of torch's own ParallelStyles.
    plan: Mapping[str, Any] | None = None
    # Whether a block may keep some of its matrices whole on every rank.
    partly: bool = False
    # Of the blocks, how many are computed again in the backward pass.
    checkpoint: bool | float = False


class Tensor(Wrapped):
    """A model whose blocks are divided."""

    data = "alike"

    def __init__(self, job: Job, options: TensorOptions) -> None:
        import torch
        from torch.distributed.device_mesh import init_device_mesh

        blocks = repeated_blocks(torch, [job.model])
        if not blocks:
            raise CallerMistake(
                f"{type(job.model).__qualname__}, in which no blocks repeat",
                expected="a model with a list of blocks of one kind, such as a transformer's layers",
                remedy="use strategy='fsdp', which needs none",
            )
        _insist_on_no_scheduler(job.optimizer)
        layout = layout_of(job.model, job.optimizer)
        from_first(job.model, job.joined)
        to_device(job.model, job.optimizer, job.joined.device)
        _same_random_numbers(job)
        seen = called_with(job, blocks[0])
        mesh = init_device_mesh(job.joined.device.type, (job.joined.count,))
        found = _asked_for(blocks[0], seen, options) or find_pairs(blocks[0], seen, job.joined.count)
        _insist_on_all(blocks[0], found, options)
        counts = divided_as_proven(blocks, found, seen, mesh)
        self._again = Again(job.model, options.checkpoint)
        _follow_in_groups(job.optimizer, layout, named(job.model))
        words = f"{', '.join(found.styles)} of {len(blocks)} blocks are divided over {job.joined.count} ranks"
        if counts:
            words += f" ({', '.join(counts)} divided, too)"
        super().__init__(job, reason=words + "; proven on a block" + self._again.words)

    def close(self) -> None:
        """Blocks compute as they did; parameters stay divided."""
        self._again.undo()


def _asked_for(block: Any, seen: Called, options: TensorOptions) -> Found | None:
    if options.plan is None:
        return None
    within = dict(block.named_modules())
    for name, style in options.plan.items():
        if name not in within or (isinstance(style, str) and style not in ("column", "row")):
            raise CallerMistake(
                f"a plan with {name!r}: {style!r}",
                expected="names of modules inside of a block, each 'column', 'row' or a ParallelStyle; of: "
                + ", ".join(seen.linears),
                remedy="name them as block.named_modules() does",
            )
    return Found(styles=dict(options.plan), left=())


def _insist_on_all(block: Any, found: Found, options: TensorOptions) -> None:
    """Matrices that stay whole take memory and time on every rank: only where that is said to be fine."""
    divided = set(found.styles)
    whole = [
        name
        for name, one in block.named_parameters()
        if one.dim() > 1 and not any(name.startswith(f"{module}.") for module in divided)
    ]
    if not found.styles or (whole and not options.partly and options.plan is None):
        why = f" ({'; '.join(found.left)})" if found.left else ""
        raise CallerMistake(
            f"a {type(block).__qualname__} with {', '.join(whole) or 'nothing'} that cannot be divided{why}",
            expected="linear layers in pairs: some that read the block's width, then one that brings it back",
            remedy="give a plan={'attention.q': 'column', 'attention.out': 'row', ...}, or partly=True to "
            "keep these whole on every rank"
            if found.styles
            else "give a plan={...} of the block's linear layers, or use strategy='fsdp'",
        )


def _same_random_numbers(job: Job) -> None:
    """Dropout beside the divided layers must drop the same on all ranks: all go on from the first's."""
    import torch
    import torch.distributed as dist

    where = job.joined.speaks_on
    on_gpu = job.joined.device.type == "cuda"
    states = [torch.get_rng_state(), *([torch.cuda.get_rng_state(job.joined.device)] if on_gpu else [])]
    for state in states:
        told = state.to(where)
        dist.broadcast(told, 0)
        state.copy_(told)
    torch.set_rng_state(states[0])
    if on_gpu:
        torch.cuda.set_rng_state(states[1], job.joined.device)


def _insist_on_no_scheduler(optimizer: Any) -> None:
    if optimizer is not None and hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        raise CallerMistake(
            "an optimizer that a learning-rate scheduler holds already",
            expected="a scheduler that is made afterwards: parameter groups are divided in two",
            remedy="make the scheduler after flatout.parallel, of its `.optimizer`",
        )


def _follow_in_groups(optimizer: Any, layout: Layout | None, now: dict[str, Any]) -> None:
    """Divided parameters get groups of their own: torch's fused steps take no mixture of both kinds."""
    follow(optimizer, layout, now)
    if optimizer is None:
        return
    for number, group in enumerate(list(optimizer.param_groups)):
        divided = [one for one in group["params"] if hasattr(one, "to_local")]
        group["flatout_group"] = number
        if divided and len(divided) < len(group["params"]):
            among = {id(one) for one in divided}
            group["params"] = [one for one in group["params"] if id(one) not in among]
            optimizer.param_groups.append({**group, "params": divided})
