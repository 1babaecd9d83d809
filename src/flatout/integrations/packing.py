"""States as text and tensors: a library's checkpoints can be read without unpickling anything else."""

import json
from typing import Any

from flatout.runtime.checkpoint.plain import Apart, Together


def packed(state: dict[str, Any]) -> dict[str, Any]:
    """Plain data as text and tensors."""
    import torch

    apart = Apart(torch)
    plain = apart.take({"state": state})
    return {
        "plain": json.dumps(plain),
        "tensors": {json.dumps(ref): one for ref, one in apart.tensors.items()},
    }


def unpacked(kept: dict[str, Any]) -> dict[str, Any]:
    """What `packed` was given."""
    import torch

    tensors = {tuple(json.loads(ref)): one for ref, one in kept["tensors"].items()}
    state: dict[str, Any] = Together(torch, lambda ref: tensors[ref]).state(json.loads(kept["plain"]))[
        "state"
    ]
    return state
