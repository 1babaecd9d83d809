"""Blocks that a model repeats: the layers of a transformer, the stages of a network for pictures."""

from collections.abc import Iterable
from typing import Any

# Of a model's parameters, what its repeated blocks must hold to be worth anything.
_WORTH = 0.3
_FEWEST = 2


def repeated_blocks(torch: Any, roots: Iterable[Any]) -> list[Any]:
    """The blocks of every root, in their order: members of lists whose members are of one kind.

    The outermost lists count: a block's own repeated parts belong to it. A root may be part of another.
    """
    found: list[Any] = []
    for root in roots:
        blocks = _inside(torch, root)
        whole = sum(parameter.numel() for parameter in root.parameters())
        held = sum(parameter.numel() for block in blocks for parameter in block.parameters())
        if whole and held >= _WORTH * whole:
            found += blocks
    return list({id(block): block for block in found}.values())


def _inside(torch: Any, module: Any) -> list[Any]:
    nn = torch.nn
    children = [child for child in module.children() if any(True for _ in child.parameters())]
    is_list = isinstance(module, nn.ModuleList | nn.Sequential)
    if is_list and len(children) >= _FEWEST and len({type(child) for child in children}) == 1:
        # A list of lists (stages of blocks) is as good as one list; plain layers are no blocks.
        if isinstance(children[0], nn.Sequential | nn.ModuleList):
            return [block for child in children for block in _inside(torch, child) or [child]]
        return children if _is_block(children[0]) else []
    return [block for child in children for block in _inside(torch, child)]


def _is_block(module: Any) -> bool:
    """Whether it is made of several parts: what keeps one tensor has nothing to be computed again for."""
    return sum(1 for child in module.modules() if not list(child.children())) >= _FEWEST
