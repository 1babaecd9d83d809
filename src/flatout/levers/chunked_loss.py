"""A product with a head's weight and its cross entropy, some tokens at a time.

All logits at once are the largest tensor of many a language model, and exist several times: as they are, in
float32, as probabilities and as their gradient. Here a chunk of them exists at a time. Their gradient is
known as soon as they are, so the gradients of both factors are made on the way, and nothing of the chunk is
kept. It is an operator of its own, opaque to the compiler, which would otherwise keep every chunk for the
backward pass.

On a GPU a kernel makes gradients of logits where they lie, in rows that are filled up to what products like:
memory sees less than half of what a compiled loss reads and writes of them.
"""

import functools
from collections.abc import Callable
from typing import Any

# Logits that exist at a time. Fewer make products too small for a GPU.
_CHUNK = 1 << 26
# Bytes of them with the kernel, which keeps nothing beside.
_CHUNK_OF_KERNEL_BYTES = 1 << 29
# Rows and classes are rounded to what the products' tiles are made of.
_TILE_ROWS, _TILE_CLASSES = 256, 64


Loss = Callable[..., Any]


@functools.cache
def linear_cross_entropy(torch: Any) -> Loss:
    """The loss of this process: (x, weight, targets, ignore_index, dtype) -> mean, products in `dtype`.

    `x` is [tokens, width], `weight` [classes, width].
    """
    operator = _operator(torch)

    def loss(x: Any, weight: Any, targets: Any, ignore_index: int, dtype: Any) -> Any:
        return operator(x, weight, targets, ignore_index, dtype)[0]

    return loss


def rows_at_a_time(classes: int) -> int:
    """Tokens whose logits exist at a time, without the kernel."""
    return max(1, _CHUNK // classes)


def rows_of_kernel(classes: int, dtype: Any) -> int:
    """Tokens whose logits exist at a time, with the kernel."""
    tiles: float = _CHUNK_OF_KERNEL_BYTES / dtype.itemsize / classes / _TILE_ROWS
    return max(1, round(tiles)) * _TILE_ROWS


def columns_of(classes: int) -> int:
    """How long a row of logits is with the kernel."""
    return -(-classes // _TILE_CLASSES) * _TILE_CLASSES


@functools.cache
def why_no_kernel(torch: Any, device: Any, dtype: Any) -> str:
    """Why products of this device and dtype go without the kernel; empty where it runs.

    Tried once, on one row: a kernel is built when it is first called, for which triton needs a compiler, a
    place to write to and a GPU that it knows.
    """
    if device.type != "cuda":
        return "the tensors are on no GPU"
    if dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return f"it is not made for {dtype}"
    try:
        from flatout.levers.loss_kernel import losses_and_gradient

        logits = torch.zeros(1, _TILE_CLASSES, dtype=dtype, device=device)
        losses_and_gradient(
            logits, 2, torch.zeros(1, dtype=torch.int64, device=device), -100, logits[0, :1].float()
        )
        torch.cuda.synchronize(device)
    except Exception as error:  # noqa: BLE001 - whatever is missing, there is a way without it
        return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"
    return ""


def _operator(torch: Any) -> Any:
    """Returns the mean loss, how many tokens count, and the gradients of the sum."""
    schema = (
        "(Tensor x, Tensor weight, Tensor targets, int ignore_index, ScalarType dtype)"
        " -> (Tensor, Tensor, Tensor, Tensor)"
    )

    def chunked(x: Any, weight: Any, targets: Any, ignore_index: int, dtype: Any) -> Any:
        way = _chunked if why_no_kernel(torch, x.device, dtype) else _by_kernel
        with torch.autocast(x.device.type, enabled=False):
            return way(torch, x, weight, targets, ignore_index, dtype)

    def shapes(x: Any, weight: Any, _targets: Any, _ignore_index: int, dtype: Any) -> Any:
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
        # Where no token counts the loss is not a number, and its gradients are nothing.
        scale = torch.where(count > 0, grad.to(for_weight.dtype) / count, 0.0)
        # Scaled at the end: a hundred-thousandth of a gradient would be nothing in fp16.
        of_x = (for_x.to(scale.dtype) * scale).to(for_x.dtype)
        return of_x, (for_weight * scale).to(ctx.weight_dtype), None, None, None

    operator = torch.library.custom_op(
        "flatout::linear_cross_entropy", chunked, mutates_args=(), schema=schema
    )
    operator.register_fake(shapes)
    operator.register_autograd(backward, setup_context=keep)
    return torch.ops.flatout.linear_cross_entropy.default


def _exact(torch: Any, dtype: Any) -> Any:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _chunked(torch: Any, x: Any, weight: Any, targets: Any, ignore_index: int, dtype: Any) -> Any:
    exact, rows = _exact(torch, dtype), rows_at_a_time(weight.shape[0])
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


def _by_kernel(torch: Any, x: Any, weight: Any, targets: Any, ignore_index: int, dtype: Any) -> Any:
    """The same with the kernel."""
    from flatout.levers.loss_kernel import losses_and_gradient

    classes, width = weight.shape
    rows, targets = rows_of_kernel(classes, dtype), targets.contiguous()
    columns = columns_of(classes)
    factor = weight.to(dtype)
    if columns != classes:
        factor = torch.nn.functional.pad(factor, (0, 0, 0, columns - classes))
    losses = torch.empty(len(x), dtype=torch.float32, device=x.device)
    for_x = torch.empty_like(x, memory_format=torch.contiguous_format)
    for_weight = torch.zeros(columns, width, dtype=torch.float32, device=x.device)
    for start in range(0, len(x), rows):
        part = slice(start, start + rows)
        own = x[part].to(dtype)
        logits = own @ factor.t()
        losses_and_gradient(logits, classes, targets[part], ignore_index, losses[part])
        for_x[part] = (logits @ factor).to(x.dtype)
        _add_product(torch, for_weight, logits.t(), own)
        del logits
    count = (targets != ignore_index).sum().to(torch.float32)
    return losses.sum() / count, count, for_x, for_weight[:classes]


def _add_product(torch: Any, total: Any, left: Any, right: Any) -> None:
    """In float32: a product that is rounded before it is added loses what others have gained."""
    if left.dtype is total.dtype:
        total.addmm_(left, right)
        return
    try:
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    except (RuntimeError, TypeError):  # a torch, or a device, that cannot do both at once
        total += left @ right
