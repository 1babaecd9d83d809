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

try:
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
except ImportError:  # older ones make masks without asking how attention goes
    AttentionMaskInterface = None  # type: ignore[assignment,misc,unused-ignore]

try:
    from flatout.infer.generating import one_token
except ImportError:  # no triton
    one_token = None  # type: ignore[assignment,unused-ignore]

# By torch's kernels, and by one of our own.
TOGETHER, KERNEL = "flatout_one_token", "flatout_one_token_kernel"


@contextlib.contextmanager
def heads_ask_together(model: Any, how: str = TOGETHER) -> Iterator[None]:
    """Meanwhile, attention of single tokens goes our way; all else as the model was made."""
    config = model.config
    before = config._attn_implementation  # noqa: SLF001
    if before != "sdpa":  # eager models may want weights, others have kernels of their own
        yield
        return
    config._attn_implementation_internal = how  # noqa: SLF001
    try:
        yield
    finally:
        config._attn_implementation_internal = before  # noqa: SLF001


def has_kernel(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether our kernel is made for such tensors, and here."""
    return one_token is not None and query.is_cuda and one_token.can_attend(query, key, value)


def by_torch(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scale: float | None
) -> torch.Tensor:
    """One token a row: a reshape of the queries in place of copies of the keys."""
    rows, heads, _, width = query.shape
    shared = key.shape[1]
    together = query.reshape(rows, shared, heads // shared, width)
    out = functional.scaled_dot_product_attention(together, key, value, attn_mask=mask, scale=scale)
    return out.reshape(rows, 1, heads, value.shape[-1])


def by_kernel(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scale: float | None
) -> torch.Tensor:
    """The same by our own kernel."""
    given = query.shape[-1] ** -0.5 if scale is None else scale
    found: torch.Tensor = one_token.attend_one_token(query, key, value, mask, given)
    return found


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    if query.shape[2] != 1 or query.shape[1] % key.shape[1] or attention_mask is None:
        usual = ALL_ATTENTION_FUNCTIONS["sdpa"]
        found: tuple[torch.Tensor, None] = usual(
            module, query, key, value, attention_mask, scaling=scaling, **others
        )
        return found
    return by_torch(query, key, value, attention_mask, scaling), None


def _attend_by_kernel(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    is_bool = attention_mask is not None and attention_mask.dtype == torch.bool
    if attention_mask is None or not is_bool or query.shape[2] != 1 or not has_kernel(query, key, value):
        return _attend(module, query, key, value, attention_mask, scaling, **others)
    return by_kernel(query, key, value, attention_mask, scaling), None


AttentionInterface.register(TOGETHER, _attend)
AttentionInterface.register(KERNEL, _attend_by_kernel)
if AttentionMaskInterface is not None:
    # Somebody else may call the model while a step of ours is under way, and must not lose the padding.
    for _name in (TOGETHER, KERNEL):
        AttentionMaskInterface.register(_name, sdpa_mask)
