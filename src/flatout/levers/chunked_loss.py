"""A product with a head's weight and its cross entropy, some tokens at a time.

All logits at once are the largest tensor of many a language model, and exist several times: as they are, in
float32, as probabilities and as their gradient. Here a chunk of them exists at a time. Their gradient is
known as soon as they are, so the gradients of both factors are made on the way, and nothing of the chunk is
kept. It is an operator of its own, opaque to the compiler, which would otherwise keep every chunk for the
backward pass.
"""

import functools
from collections.abc import Callable
from typing import Any

# Logits that exist at a time. Fewer make products too small for a GPU.
_CHUNK = 1 << 26


Loss = Callable[..., Any]


@functools.cache
def linear_cross_entropy(torch: Any) -> Loss:
    """The loss of this process: (x, weight, targets, ignore_index, dtype) -> mean, products in `dtype`.

    `x` is [tokens, width], `weight` [classes, width].
    """
    operator = _operator(torch)

    def loss(x: Any, weight: Any, targets: Any, ignore_index: int, dtype: Any) -> Any:
        return operator(x, weight, targets, ignore_index, dtype, rows_at_a_time(weight.shape[0]))[0]

    return loss


def rows_at_a_time(classes: int) -> int:
    """Tokens whose logits exist at a time."""
    return max(1, _CHUNK // classes)


def _operator(torch: Any) -> Any:
    """Returns the mean loss, how many tokens count, and the gradients of the sum."""
    schema = (
        "(Tensor x, Tensor weight, Tensor targets, int ignore_index, ScalarType dtype, int rows)"
        " -> (Tensor, Tensor, Tensor, Tensor)"
    )

    def chunked(x: Any, weight: Any, targets: Any, ignore_index: int, dtype: Any, rows: int) -> Any:
        with torch.autocast(x.device.type, enabled=False):
            return _chunked(torch, x, weight, targets, ignore_index, dtype, rows)

    def shapes(x: Any, weight: Any, _targets: Any, _ignore_index: int, dtype: Any, _rows: int) -> Any:
        exact = _exact(torch, dtype)
        scalar = x.new_empty((), dtype=exact)
        return (
            scalar,
            torch.empty_like(scalar),
            x.new_empty(x.shape),
            weight.new_empty(weight.shape, dtype=exact),
        )

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        _, count, for_x, for_weight = output
        ctx.mark_non_differentiable(count, for_x, for_weight)
        ctx.save_for_backward(count, for_x, for_weight)
        ctx.weight_dtype = inputs[1].dtype

    def backward(ctx: Any, grad: Any, *_: Any) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError("linear-cross-entropy has no second derivatives: --skip linear-cross-entropy")
        count, for_x, for_weight = ctx.saved_tensors
        scale = grad.to(for_weight.dtype) / count
        # Scaled at the end: a hundred-thousandth of a gradient would be nothing in fp16.
        of_x = (for_x.to(scale.dtype) * scale).to(for_x.dtype)
        return of_x, (for_weight * scale).to(ctx.weight_dtype), None, None, None, None

    operator = torch.library.custom_op(
        "flatout::linear_cross_entropy", chunked, mutates_args=(), schema=schema
    )
    operator.register_fake(shapes)
    operator.register_autograd(backward, setup_context=keep)
    return torch.ops.flatout.linear_cross_entropy.default


def _exact(torch: Any, dtype: Any) -> Any:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _chunked(torch: Any, x: Any, weight: Any, targets: Any, ignore_index: int, dtype: Any, rows: int) -> Any:
    exact = _exact(torch, dtype)
    factor = weight.to(dtype)
    counts = targets != ignore_index
    total = x.new_zeros((), dtype=exact)
    for_x = torch.empty_like(x, memory_format=torch.contiguous_format)
    for_weight = torch.zeros_like(weight, dtype=exact, memory_format=torch.contiguous_format)
    for start in range(0, x.shape[0], rows):
        part = slice(start, start + rows)
        own, here = x[part].to(dtype), counts[part].unsqueeze(1)
        wanted = torch.where(counts[part], targets[part], 0).unsqueeze(1)
        logits = (own @ factor.t()).to(exact)
        sums = torch.logsumexp(logits, 1, keepdim=True)
        total += ((sums - logits.gather(1, wanted)) * here).sum()
        # From here on the gradient of the sum with respect to the logits.
        logits.sub_(sums).exp_()
        logits.scatter_add_(1, wanted, -torch.ones_like(sums))
        gradient = logits.mul_(here).to(dtype)
        for_x[part] = (gradient @ factor).to(x.dtype)
        for_weight += (gradient.t() @ own).to(exact)
    count = counts.sum().to(exact)
    return total / count, count, for_x, for_weight
