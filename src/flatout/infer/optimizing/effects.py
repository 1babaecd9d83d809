"""What a call does beside giving an answer. Whoever has effects runs as it was written: no trial could show
that another way has the same ones."""

import torch

from flatout.infer.optimizing.answers import Unseen, numbers_in
from flatout.infer.optimizing.calling import Arguments
from flatout.infer.optimizing.state import State


@torch.no_grad()
def effects_of(module: torch.nn.Module, example: Arguments, before: State) -> str:
    """Why the module must run as written, after a first call of it; nothing where any way will do."""
    remembers = before.changed()
    # What a first call makes once and for all, such as a table of positions, is no memory.
    settled = State(module)
    given = example.copied()
    answer = given.of(module)
    remembers += [name for name in (*settled.changed(), *settled.other_values()) if name not in remembers]
    if remembers:
        return f"calls change what the module holds ({', '.join(remembers[:4])})"
    for mine, theirs in zip(given.tensors(), example.tensors(), strict=True):
        if mine.shape != theirs.shape or not bool(((mine == theirs) | (mine != mine)).all()):
            return "calls write into what they are given"
    try:
        return "" if numbers_in(answer) else "its outputs hold nothing that could be compared"
    except Unseen as unseen:
        return str(unseen)
