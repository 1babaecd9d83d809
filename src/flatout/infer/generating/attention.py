"""Attention of one new token a row, in which heads that share keys ask together.

transformers copies keys and values once for each query head before it asks them. A token of a large model is
a walk through memory, and those copies are a part of the way.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

_NAME = "flatout_one_token"


@contextlib.contextmanager
def heads_ask_together(model: Any) -> Iterator[None]:
    """Meanwhile, attention of single tokens goes our way; all else as the model was made."""
    config = model.config
    before = config._attn_implementation  # noqa: SLF001
    if before != "sdpa":  # eager models may want weights, others have kernels of their own
        yield
        return
    config._attn_implementation_internal = _NAME  # noqa: SLF001
    try:
        yield
    finally:
        config._attn_implementation_internal = before  # noqa: SLF001


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    rows, heads, tokens, width = query.shape
    shared = key.shape[1]
    if tokens != 1 or heads % shared or attention_mask is None:
        usual = ALL_ATTENTION_FUNCTIONS["sdpa"]
        found: tuple[torch.Tensor, None] = usual(
            module, query, key, value, attention_mask, scaling=scaling, **others
        )
        return found
    together = query.reshape(rows, shared, heads // shared, width)
    out = functional.scaled_dot_product_attention(
        together, key, value, attn_mask=attention_mask, scale=scaling
    )
    return out.reshape(rows, 1, heads, value.shape[-1]), None


AttentionInterface.register(_NAME, _attend)
