"""Blocks that are computed again in the backward pass, where a strategy is asked for it."""

from typing import Any

from flatout.levers.block_checkpointing import checkpointed
from flatout.levers.blocks import repeated_blocks
from flatout.records.errors import CallerMistake


class Again:
    """Checkpoints around the first `share` of a model's repeated blocks (True: all of them)."""

    def __init__(self, model: Any, share: bool | float) -> None:
        import torch

        self._found: list[tuple[Any, Any]] = []
        self.words = ""
        if not share:
            return
        blocks = repeated_blocks(torch, [model])
        if not blocks or not 0.0 < float(share) <= 1.0:
            raise CallerMistake(
                f"checkpoint={share!r} for {type(model).__qualname__}, with {len(blocks)} repeated blocks",
                expected="a model that repeats blocks, and the share of them to compute again: up to 1.0",
                remedy="leave checkpoint out, or put torch.utils.checkpoint into the model",
            )
        count = max(1, round(float(share) * len(blocks)))
        for block in blocks[:count]:
            self._found.append((block, vars(block).get("forward")))
            block.forward = checkpointed(torch, block, block.forward)
        self.words = f"; {count} of {len(blocks)} blocks are computed again in the backward pass"

    def undo(self) -> None:
        """As they were."""
        for block, own in self._found:
            if own is None:
                vars(block).pop("forward", None)
            else:
                block.forward = own
        self._found = []
