"""Blocks that keep their input alone, and are computed once more on the way back."""

import contextlib
from collections.abc import Iterator
from typing import Any

from flatout.levers.blocks import repeated_blocks
from flatout.levers.job import JobFacts
from flatout.levers.lever import Lever, Refused, Settings

# A forward pass is a third of a step, and blocks are most of it.
_FORWARD_SHARE = 1 / 3


class BlockCheckpointing(Lever):
    """Checkpoints around the repeated blocks of any model: a transformer's layers, a network's stages.

    A block keeps its input alone, and is computed once more in the backward pass. Activations take a fraction
    of the memory; a step takes longer by one more forward pass of the blocks that do it, at most about a
    third. `share` says of how many blocks, the first ones: a half costs half the time. Random numbers are
    drawn again as they were, and statistics of batch norms are counted once. Only tried where the goal is
    less memory, or where a plan must fit into some.
    """

    id = "block-checkpointing"
    title = "block checkpointing"
    safety = "memory"
    reorders = True
    remakes = True
    conflicts = ("hf-checkpointing", "activation-budget")

    @classmethod
    def check(cls, job: JobFacts) -> str:
        """Needs blocks, and a script that does not do it already."""
        if not job.habit("repeated_blocks"):
            return "the model has no blocks that repeat"
        known = job.habit("hf_checkpointing")
        if known is not None and known["on"]:
            return "the script does it already"
        return ""

    @classmethod
    def variants(cls, job: JobFacts) -> tuple[Settings, ...]:
        """What saves most first: less of it where that costs too much time."""
        return {"share": 1.0}, {"share": 0.5}

    @classmethod
    def predict(cls, job: JobFacts, settings: Settings) -> float:
        """One more forward pass of those blocks."""
        return 1.0 / (1.0 + _FORWARD_SHARE * float(settings.get("share", 1.0)))

    def apply(self) -> None:
        """A checkpoint around the forward pass of each block."""
        torch = self.scene.torch
        blocks = repeated_blocks(torch, self.scene.roots())
        if not blocks:
            raise Refused("the model has no blocks that repeat")
        count = max(1, round(float(self.settings.get("share", 1.0)) * len(blocks)))
        # By block, what its own dictionary had in place of the class's forward.
        self._found: list[tuple[Any, Any]] = []
        for block in blocks[:count]:
            self._found.append((block, vars(block).get("forward")))
            block.forward = checkpointed(torch, block, block.forward)

    def undo(self) -> None:
        """As the class has it."""
        for block, own in reversed(self._found):
            if own is None:
                del block.forward
            else:
                block.forward = own
        self._found = []


def checkpointed(torch: Any, block: Any, forward: Any) -> Any:
    """A block's forward that keeps its input alone while it trains."""
    from torch.utils.checkpoint import checkpoint

    norms = [
        module
        for module in block.modules()
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm)  # noqa: SLF001
    ]
    more: dict[str, Any] = (
        {"context_fn": lambda: (contextlib.nullcontext(), _own_statistics(norms))} if norms else {}
    )

    def forward_with_checkpoint(*args: Any, **kwargs: Any) -> Any:
        if not (torch.is_grad_enabled() and block.training):
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **more, **kwargs)

    return forward_with_checkpoint


@contextlib.contextmanager
def _own_statistics(norms: list[Any]) -> Iterator[None]:
    """Batch norms count a batch when it comes, not when it is computed once more."""
    buffers = [(norm, dict(norm._buffers)) for norm in norms]  # noqa: SLF001
    for norm, kept in buffers:
        for name, value in kept.items():
            norm._buffers[name] = value.clone() if value is not None else None  # noqa: SLF001
    try:
        yield
    finally:
        for norm, kept in buffers:
            norm._buffers.update(kept)  # noqa: SLF001
