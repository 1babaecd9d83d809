"""A kernel for the cross entropy of many classes: each row's loss and, in the row's place, its gradient.

A row is read twice and written once. What it holds stays in the cache between the two reads, so that memory
sees one of them alone. Computes in float32, whatever the logits are in.
"""

from typing import Any

import torch
import triton  # type: ignore[import-untyped,import-not-found,unused-ignore]
from triton import language as tl  # type: ignore[import-untyped,import-not-found,unused-ignore]

# Classes that are looked at in a turn, and by how many warps: as measured fastest on an H200.
_BLOCK, _WARPS = 2048, 4


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def cross_entropy_of_a_row(  # type: ignore[no-untyped-def]
    logits, targets, losses, logits_row, ignore_index,
    classes: tl.constexpr, columns: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """One row; what lies behind its classes is filling, and gets no gradient."""
    number = tl.program_id(0)
    own = logits + number.to(tl.int64) * logits_row
    target = tl.load(targets + number)
    counts = target != ignore_index
    # A target that is no class makes loss and gradient NaN, and reads nothing.
    is_class = (target >= 0) & (target < classes)
    wanted = tl.load(own + target, mask=counts & is_class, other=float("nan")).to(tl.float32)
    top = tl.full([block], float("-inf"), tl.float32)
    summed = tl.zeros([block], tl.float32)
    for start in range(0, classes, block):
        at = start + tl.arange(0, block)
        one = tl.load(own + at, mask=at < classes, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(top, one)
        # Of places that have seen no class yet.
        base = tl.where(higher == float("-inf"), 0.0, higher)
        summed = summed * tl.exp(top - base) + tl.exp(one - base)
        top = higher
    highest = tl.max(top, 0)
    total = highest + tl.log(tl.sum(summed * tl.exp(top - highest), 0))
    tl.store(losses + number, tl.where(counts, total - wanted, 0.0))
    for start in range(0, columns, block):
        at = start + tl.arange(0, block)
        one = tl.load(own + at, mask=at < classes, other=float("-inf")).to(tl.float32)
        gradient = tl.exp(one - total) - tl.where(at == target, 1.0, 0.0)
        gradient = tl.where(is_class, gradient, float("nan"))
        tl.store(
            own + at,
            tl.where(counts & (at < classes), gradient, 0.0).to(logits.dtype.element_ty),
            mask=at < columns,
        )


def losses_and_gradient(logits: Any, classes: int, targets: Any, ignore_index: int, losses: Any) -> None:
    """Write the loss of each row to `losses`, in float32; `logits` becomes the gradient of their sum.

    Rows may be longer than there are classes; targets are class numbers or `ignore_index`.
    """
    # triton launches where the current device is.
    with torch.cuda.device_of(logits):  # type: ignore[no-untyped-call, unused-ignore]
        cross_entropy_of_a_row[(len(logits),)](
            logits, targets, losses, logits.stride(0), ignore_index,
            classes=classes, columns=logits.shape[1], block=_BLOCK, num_warps=_WARPS,
        )  # fmt: skip
