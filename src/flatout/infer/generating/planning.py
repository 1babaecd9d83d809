"""How much of the device's memory a cache may take, and what that holds."""

from typing import Any

import torch

from flatout.infer.generating.cache import of_one_token

# Of what is free: the rest is for activations of long prompts and for graphs.
_SHARE = 0.8


def token_bytes(model: Any) -> int:
    """What one token of one row takes in the cache, over all layers."""
    return sum(keys.nbytes + values.nbytes for keys, values in of_one_token(model))


def rows_that_fit(model: Any, wanted: int, length: int) -> int:
    """As many rows as are wanted, or as the free memory of the device holds."""
    device = next(model.parameters()).device
    if device.type != "cuda":
        return wanted
    # What torch holds and does not use is free for the cache, too.
    free, _ = torch.cuda.mem_get_info(device)
    spare = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    row = token_bytes(model) * length
    fits = int(_SHARE * (free + spare) // row)
    if fits < 1:
        raise MemoryError(
            f"the cache of one sequence of {length} tokens takes {row / 2**30:.1f} GiB, and "
            f"{(free + spare) / 2**30:.1f} GiB are free; a shorter max_new_tokens or prompt is expected"
        )
    return min(wanted, fits)
