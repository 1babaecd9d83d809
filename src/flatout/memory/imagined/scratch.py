"""What CUDA's kernels take while an operator runs, and give back when it is over.

Nobody documents it. Each rule here is read off what torch's allocator was asked for on an H200 (torch 2.11,
cuDNN 9), operator by operator; `benchmarks/fit_accuracy.py` says how far they carry.
"""

import math
from typing import Any

from flatout.levers.chunked_loss import columns_of, rows_of_kernel

# Of the device: multiprocessors, and threads on each.
MULTIPROCESSORS = 132
THREADS_PER_MULTIPROCESSOR = 2048
# Of torch's reductions: threads of a block, outputs that one thread computes at once, values for one thread.
_THREADS, _AT_ONCE, _WARP = 512, 4, 32
_FEWEST_VALUES, _MOST_VALUES = 16, 256
_FLOAT_BYTES = 4
# Rows of an embedding's gradient that one thread adds up.
_ROWS_PER_THREAD = 10
_FEW_WORDS = 3072
# A weight's gradient is summed up in parts, in float32: a part for each picture, where that is not too much;
# beside copies, so many parts, and so much at most.
_MOST_FOR_PARTIAL_SUMS = 64 << 20
_PARTS_BESIDE_COPIES = 14
_MOST_BESIDE_COPIES = 8 << 20
_FEW_IN_HALF = 20 << 20
_MANY = 64
# Channels and pixels that tensor cores take at once.
_ALIGNED = 4


def scratch_of(torch: Any, name: str, args: Any, out: Any) -> list[tuple[int, int]]:
    """For each result after which a kernel takes memory: which result, and how many bytes."""
    if name == "aten::convolution":
        return [(0, _convolution(torch, args[0], args[1], out, args[3]))]
    if name == "aten::convolution_backward":
        return _convolution_backward(torch, args)
    if name == "aten::sum" and len(args) > 1 and args[1]:
        return [(0, _sum(args[0], args[1]))]
    if name == "aten::embedding_dense_backward":
        return [(0, _embedding(*args[:3]))]
    if name == "aten::native_layer_norm":
        return [] if args[0].is_contiguous() else [(0, _bytes(args[0]))]
    if name == "aten::_scaled_dot_product_flash_attention_for_cpu_backward":
        return [(2, _attention_backward(args[1]))]
    if name == "flatout::linear_cross_entropy":
        return [(3, _loss_in_chunks(*args))]
    return []


def _loss_in_chunks(x: Any, weight: Any, _targets: Any, _ignore_index: int, dtype: Any) -> int:
    """A chunk of logits, the weight as products take it, and a chunk of what goes in and comes out."""
    classes, width = weight.shape
    rows, columns = min(len(x), rows_of_kernel(classes, dtype)), columns_of(classes)
    is_as_it_is = weight.dtype == dtype and columns == classes
    numbers = rows * columns + (0 if is_as_it_is else columns * width) + 2 * rows * width
    return int(numbers * dtype.itemsize)


def _attention_backward(query: Any) -> int:
    """The gradient of queries is summed up in float32, beside a sum for each row."""
    return int(query.numel() + query.numel() // query.shape[-1]) * _FLOAT_BYTES


def _convolution(torch: Any, x: Any, weight: Any, out: Any, stride: Any) -> int:
    """Tensor cores want channels last: what is not laid out so is copied, and the result copied back."""
    if _is_channels_last(torch, x):
        return 0
    copies = _bytes(x) + _bytes(out) + 1  # aligned, not rounded
    if math.prod(weight.shape[2:]) > 1:
        return copies + _bytes(weight)
    if math.prod(x.shape[2:]) % _ALIGNED or max(stride) > 1:
        return copies
    # Else it is a plain product, unless its channels do not suit it.
    return _bytes(out) if weight.shape[0] % _ALIGNED else 0


def _convolution_backward(torch: Any, args: Any) -> list[tuple[int, int]]:
    gradient, x, weight, _, stride = args[:5]
    copies = _convolution(torch, x, weight, gradient, stride)
    weight_bytes = weight.numel() * _FLOAT_BYTES
    both = _bytes(x) + _bytes(gradient) + 1
    in_full = x.dtype == torch.float32
    beside = min(_PARTS_BESIDE_COPIES * weight_bytes, _MOST_BESIDE_COPIES)
    if not copies:
        sums = x.shape[0] * weight_bytes
        if not in_full:
            return [(1, min(sums, both))]
        return [(1, sums if sums <= _MOST_FOR_PARTIAL_SUMS else both + beside)]
    if not in_full:
        beside = beside // 2 if _PARTS_BESIDE_COPIES * weight_bytes <= _FEW_IN_HALF else 0
    if copies < both:  # channels that do not suit it: only its weight's gradient needs them copied
        return [(1, both + beside if in_full else 0)]
    wants_input = args[-1][0]
    if copies == both:  # one product for each picture: the fewer pictures, the fewer parts
        beside = (
            min(_PARTS_BESIDE_COPIES * weight_bytes, _MOST_BESIDE_COPIES) * min(x.shape[0], _MANY) // _MANY
        )
    apart = 0 if gradient.is_contiguous() else _bytes(gradient)
    return [*([(0, copies + apart)] if wants_input else ()), (1, copies + apart + beside)]


def _is_channels_last(torch: Any, x: Any) -> bool:
    kinds = {4: torch.channels_last, 5: torch.channels_last_3d}
    kind = kinds.get(x.dim())
    return kind is not None and x.is_contiguous(memory_format=kind) and not x.is_contiguous()


def _sum(x: Any, dims: Any) -> int:
    """Over rows (a bias's gradient): blocks that share an output meet in memory, with all their threads."""
    reduced = sorted(dim % x.dim() for dim in dims)
    if not x.is_contiguous() or reduced != list(range(len(reduced))) or len(reduced) == x.dim():
        return 0  # along the fastest dimension, partial sums are few
    inputs = math.prod(x.shape[: len(reduced)])
    outputs = x.numel() // max(1, inputs)
    if not outputs or not inputs:
        return 0
    width = next(many for many in (_AT_ONCE, 2, 1) if outputs % many == 0)
    threads = _THREADS // width
    across = min(_power_of_two(outputs // width, threads), _WARP)
    down = min(_power_of_two(inputs, threads), threads // across)
    across = min(_power_of_two(outputs // width, threads), threads // down)
    if inputs < min(_FEWEST_VALUES * down, _MOST_VALUES):
        return 0
    values = _up(inputs, down)
    grid = _up(outputs // width, across)
    fitting = MULTIPROCESSORS * (THREADS_PER_MULTIPROCESSOR // (across * down))
    if values < _MOST_VALUES or grid > fitting:
        return 0
    blocks = max(min(_up(fitting, grid), _up(values, _FEWEST_VALUES)), _up(values, _MOST_VALUES))
    return _FLOAT_BYTES * outputs * blocks * across * width if blocks > 1 else 0


def _embedding(gradient: Any, indices: Any, rows: int) -> int:
    """Sums of the rows that belong to one word, in parts."""
    count = indices.numel()
    if count <= _FEW_WORDS:
        return 0  # one after the other
    return int(count // _ROWS_PER_THREAD + min(count, rows)) * int(gradient.shape[-1]) * _FLOAT_BYTES


def _power_of_two(value: int, most: int) -> int:
    return most if value >= most else 1 << (max(1, value).bit_length() - 1)


def _up(value: int, by: int) -> int:
    return -(-value // by)


def _bytes(value: Any) -> int:
    return int(value.numel() * value.element_size())
