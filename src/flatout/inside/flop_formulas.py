"""What an operator costs: one formula for each kind of matrix product, from shapes alone.

A product of (m, k) by (k, n) costs 2 * m * n * k; everything that is no matrix product costs nothing. A fused
operator costs what its plain decomposition would: attention 2 products forward and 4 backward (a fused
backward computes the scores again, which is recomputation), a recurrent layer one product for each matrix and
time step. A gradient that nobody asked for costs nothing.
"""

# ruff: noqa: SLF001 - schemas and dispatch keys have no public names in torch

import sys
from collections.abc import Callable, Mapping
from itertools import pairwise
from math import prod
from typing import Any

Arguments = Mapping[str, Any]
"""An operator's arguments by the names that its schema gives them."""

Formula = Callable[[Arguments, Any], int]
"""Floating-point operations of one call, from its arguments and what it returned."""


class Uncountable(Exception):
    """What the cost depends on cannot be read from this call."""


def _first(arguments: Arguments, *names: str) -> Any:
    """The argument that goes by any of these names: kinds of the same operator name things differently."""
    return next((arguments[name] for name in names if arguments.get(name) is not None), None)


def _asked(arguments: Arguments, place: int, tensor: Any) -> bool:
    """Whether a backward operator owes the gradient of `tensor`: by its mask, else by the tensor itself."""
    mask = _first(arguments, "output_mask", "grad_input_mask")
    return bool(tensor.requires_grad if mask is None else mask[place])


def _pack(tensor: Any) -> int:
    """Numbers that an element holds: two where a byte holds two of 4 bits (`float4_e2m1fn_x2`)."""
    return 2 if str(tensor.dtype).endswith("_x2") else 1


def _of_operands(left: str, right: str) -> Formula:
    """Batches of (m, k) times (k, n), also where the batches are then added up."""

    def formula(arguments: Arguments, _out: Any) -> int:
        a, b = arguments[left], arguments[right]
        return int(2 * a.numel() * _pack(a) * b.shape[-1])

    return formula


def _of_result(operand: str, axis: int = -1) -> Formula:
    """Each element of the result is a sum along `axis` of an operand: for an other that is packed."""

    def formula(arguments: Arguments, out: Any) -> int:
        return int(2 * out.numel() * arguments[operand].shape[axis])

    return formula


def _linear_backward(arguments: Arguments, _out: Any) -> int:
    grad, weight, mask = arguments["grad_output"], arguments["weight"], arguments["output_mask"]
    return int(2 * grad.numel() * weight.shape[-1] * (mask[0] + mask[1]))


def _linear_backward_part(arguments: Arguments, _out: Any) -> int:
    return int(2 * arguments["grad_output"].numel() * arguments["weight"].shape[-1])


def _grouped(arguments: Arguments, _out: Any) -> int:
    """Groups of rows, of columns or of the inner dimension: each row meets one group only."""
    a, b = _first(arguments, "self", "mat_a"), _first(arguments, "mat2", "mat_b")
    rows = a.shape[-2] if a.dim() > b.dim() else a.numel() // a.shape[-1]
    return int(2 * rows * a.shape[-1] * _pack(a) * b.shape[-1])


def _foreach(arguments: Arguments, _out: Any) -> int:
    pairs = zip(arguments["self"], arguments["mat2"], strict=True)
    return sum(int(2 * a.numel() * b.shape[-1]) for a, b in pairs)


def _trilinear(arguments: Arguments, _out: Any) -> int:
    """`Bilinear` and its gradients: a multiplication and an addition for each point of the joint shape."""
    expanded = []
    for operand, expand in (("i1", "expand1"), ("i2", "expand2"), ("i3", "expand3")):
        shape = list(arguments[operand].shape)
        for place in sorted(arguments[expand]):
            shape.insert(place, 1)
        expanded.append(shape)
    return 2 * prod(int(max(sizes)) for sizes in zip(*expanded, strict=True))


def _convolution(arguments: Arguments, out: Any, *, transposed: bool = False) -> int:
    """Each point of the output meets the whole filter; of a transposed one, each point of the input."""
    points = _first(arguments, "input", "self") if arguments.get("transposed", transposed) else out
    return int(2 * points.numel() * prod(arguments["weight"].shape[1:]))


def _transposed_convolution(arguments: Arguments, out: Any) -> int:
    return _convolution(arguments, out, transposed=True)


def _convolution_backward(arguments: Arguments, _out: Any) -> int:
    """As much as the forward for each of the input's and the weight's gradient, in groups too."""
    mask = arguments["output_mask"]
    return _convolution(arguments, arguments["grad_output"]) * int(mask[0] + mask[1])


def _convolution_over_time(arguments: Arguments, out: Any) -> int:
    return int(2 * out.numel() * prod(arguments["weight"].shape[:2]))


def _lengths(offsets: Any) -> list[int]:
    if offsets.is_meta or (offsets.is_cuda and sys.modules["torch"].cuda.is_current_stream_capturing()):
        raise Uncountable("the lengths of the sequences cannot be read")
    # Waits for the device: the step that is counted is not the step that is timed.
    places: list[int] = offsets.tolist()
    return [end - start for start, end in pairwise(places)]


def _unpadded(head: int, scale: float | None) -> int:
    """The size of a head before flash attention padded it to a multiple of 8: its scale still tells."""
    if not scale:
        return head
    told = round(scale**-2)
    fits = head % 8 == 0 and head - 8 < told < head and abs(told * scale**2 - 1) < 1e-4
    return told if fits else head


def _attention(products: str, layout: str) -> Formula:
    """Attention with the whole matrix of scores, masked or not: what the math backend multiplies.

    `layout` says where heads (H) and sequence (S) stand; packed sequences have their own, and offsets.
    """

    def formula(arguments: Arguments, _out: Any) -> int:
        q, k, v = (_first(arguments, name, name[0]) for name in ("query", "key", "value"))
        starts_q = _first(arguments, "cum_seq_q", "cu_seqlens_q", "cu_seq_q")
        starts_k = _first(arguments, "cum_seq_k", "cu_seqlens_k", "cu_seq_k", "cu_seqlens_kv")
        if starts_q is not None:
            lengths_q = _lengths(starts_q)
            lengths_k = lengths_q if starts_k is None else _lengths(starts_k)
            scores = q.shape[-2] * sum(a * b for a, b in zip(lengths_q, lengths_k, strict=True))
        else:
            batch, heads, length = q.shape[0], q.shape[layout.index("H")], q.shape[layout.index("S")]
            scores = batch * heads * length * k.shape[layout.index("S")]
        head, head_v = _unpadded(q.shape[-1], arguments.get("scale")), v.shape[-1]
        head_v = head if head_v == q.shape[-1] else head_v
        if products == "forward":
            return int(2 * scores * (head + head_v))
        wanted = [_asked(arguments, place, tensor) for place, tensor in enumerate((q, k, v))]
        # Attention libraries detach what they save: then nothing is said, and everything is computed.
        for_q, for_k, for_v = wanted if any(wanted) else (True, True, True)
        return int(2 * scores * (head * (for_q + for_k) + head_v * (for_v + (for_q or for_k))))

    return formula


def _fast_path_attention(arguments: Arguments, _out: Any) -> int:
    """Where gradients are off, one operator runs a whole `TransformerEncoderLayer`, or its attention."""
    x = _first(arguments, "src", "query")
    matrices = ("qkv_weight", "proj_weight", "ffn_weight_1", "ffn_weight_2")
    weights = sum(arguments[name].numel() for name in matrices if name in arguments)
    batch, length, width = x.shape
    return int(2 * batch * length * weights + 4 * batch * length * length * width)


def _cells(arguments: Arguments) -> list[list[Any]]:
    """The matrices for each layer and direction: of the input, of the state, of the projection."""
    weights = _first(arguments, "weight", "params")
    if weights is None:
        # One layer in one direction: two matrices, then biases or what stands for them.
        return [[value for name, value in arguments.items() if name.startswith("weight")][:2]]
    stride = arguments.get("weight_stride0") or (4 if arguments["has_biases"] else 2)
    cells = [weights[start : start + stride] for start in range(0, len(weights), stride)]
    return [[weight for weight in cell if weight.dim() == 2] for cell in cells]


def _recurrent(arguments: Arguments, _out: Any) -> int:
    x = arguments["input"]
    steps = x.numel() // x.shape[-1]
    return int(2 * steps * sum(matrix.numel() for cell in _cells(arguments) for matrix in cell))


def _recurrent_backward(arguments: Arguments, out: Any) -> int:
    """Twice the forward, less the gradients (of input, first state or weights) that nobody asks for."""
    state = _first(arguments, "hx", "hx_")
    state = state[0] if isinstance(state, list | tuple) else state
    cells = _cells(arguments)
    directions = 2 if arguments["bidirectional"] and len(cells) > 1 else 1
    spared = 0
    if not _asked(arguments, 0, arguments["input"]):
        steps = arguments["input"].numel() // arguments["input"].shape[-1]
        spared += steps * sum(cell[0].numel() for cell in cells[:directions])
    if not _asked(arguments, 1, state):
        # The first step's rows: of sequences packed by length, backwards, those of the longest alone.
        sizes = arguments.get("batch_sizes") or [state.shape[-2]]
        rows = (sizes[0], sizes[-1])
        spared += sum(rows[place % directions] * cell[1].numel() for place, cell in enumerate(cells))
    times = 2 if _asked(arguments, 3, cells[0][0]) else 1
    return times * _recurrent(arguments, out) - int(2 * spared)


def _aten(formula: Formula, *names: str) -> dict[str, Formula]:
    return dict.fromkeys((f"aten::{name}" for name in names), formula)


def _others(formula: Formula, *names: str) -> dict[str, Formula]:
    return dict.fromkeys(names, formula)


FORMULAS: dict[str, Formula] = {
    **_aten(_of_operands("self", "mat2"), "mm", "bmm", "_int_mm", "_scaled_mm", "_scaled_mm_v2"),
    **_aten(_of_operands("mat1", "mat2"), "addmm", "_addmm_activation"),
    **_aten(_of_operands("batch1", "batch2"), "baddbmm", "addbmm"),
    **_aten(_of_result("self"), "matmul", "mv", "dot", "vdot", "mkldnn_linear", "_weight_int8pack_mm"),
    **_aten(_of_result("self"), "_weight_int4pack_mm", "_weight_int4pack_mm_for_cpu"),
    **_aten(_of_result("self"), "_weight_int4pack_mm_with_scales_and_zeros"),
    **_aten(_of_result("mat"), "addmv"),
    **_aten(_of_result("inp"), "_dyn_quant_matmul_4bit"),
    **_aten(_of_result("input"), "linear", "_mixed_dtypes_linear", "_sparse_semi_structured_linear"),
    **_aten(_of_result("mat2", -2), "_sparse_semi_structured_mm", "_sparse_semi_structured_addmm"),
    **_aten(_of_result("dense_B", -2), "_cslt_sparse_mm"),
    **_aten(_linear_backward, "linear_backward", "mkldnn_linear_backward"),
    **_aten(_linear_backward_part, "mkldnn_linear_backward_input", "mkldnn_linear_backward_weights"),
    **_aten(_grouped, "_grouped_mm", "_scaled_grouped_mm", "_scaled_grouped_mm_v2"),
    **_aten(_foreach, "_foreach_mm"),
    **_aten(_trilinear, "_trilinear"),
    **_aten(_convolution, "convolution", "_convolution", "convolution_overrideable"),
    **_aten(_convolution, "cudnn_convolution", "cudnn_convolution_relu", "cudnn_convolution_add_relu"),
    **_aten(_convolution, "miopen_convolution", "miopen_convolution_relu", "miopen_convolution_add_relu"),
    **_aten(_convolution, "miopen_depthwise_convolution", "mkldnn_convolution", "_mps_convolution"),
    **_aten(_convolution, "_slow_conv2d_forward", "slow_conv3d_forward", "slow_conv_dilated2d"),
    **_aten(_convolution, "slow_conv_dilated3d", "_conv_depthwise2d", "conv_depthwise3d"),
    **_aten(_transposed_convolution, "cudnn_convolution_transpose", "miopen_convolution_transpose"),
    **_aten(_transposed_convolution, "slow_conv_transpose2d", "slow_conv_transpose3d"),
    **_aten(_convolution_backward, "convolution_backward", "convolution_backward_overrideable"),
    **_aten(_convolution_over_time, "conv_tbc"),
    **_aten(_recurrent, "_cudnn_rnn", "miopen_rnn", "mkldnn_rnn_layer", "_lstm_mps"),
    **_aten(_recurrent_backward, "_cudnn_rnn_backward", "miopen_rnn_backward"),
    **_aten(_recurrent_backward, "mkldnn_rnn_layer_backward", "lstm_mps_backward"),
    **_aten(_fast_path_attention, "_native_multi_head_attention", "_transformer_encoder_layer_fwd"),
    **_aten(
        _attention("forward", "BHSD"),
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_fused_attention_overrideable",
        "_scaled_dot_product_attention_math_for_mps",
        "_cudnn_attention_forward",
    ),
    **_aten(
        _attention("backward", "BHSD"),
        "_scaled_dot_product_flash_attention_backward",
        "_scaled_dot_product_efficient_attention_backward",
        "_scaled_dot_product_cudnn_attention_backward",
        "_scaled_dot_product_flash_attention_for_cpu_backward",
        "_scaled_dot_product_fused_attention_overrideable_backward",
        "_cudnn_attention_backward",
    ),
    **_aten(
        _attention("forward", "BSHD"),
        "_flash_attention_forward",
        "_flash_attention_forward_no_dropout_inplace",
        "_efficient_attention_forward",
    ),
    **_aten(_attention("backward", "BSHD"), "_flash_attention_backward", "_efficient_attention_backward"),
    **_others(_attention("forward", "BHSD"), "higher_order::flex_attention"),
    **_others(_attention("backward", "BHSD"), "higher_order::flex_attention_backward"),
    **_others(
        _attention("forward", "BSHD"),
        "torch_attn::_varlen_attn",
        "torch_attn::_varlen_attn_out",
        "flash_attn::_flash_attn_forward",
        "flash_attn::_flash_attn_varlen_forward",
        "flash_attn_3::_flash_attn_forward",
    ),
    **_others(
        _attention("backward", "BSHD"),
        "torch_attn::_varlen_attn_backward",
        "flash_attn::_flash_attn_backward",
        "flash_attn::_flash_attn_varlen_backward",
        "flash_attn_3::_flash_attn_backward",
    ),
}
"""By the qualified name of the operator; its overloads and its in-place form share the formula."""

WITHOUT_FORMULA = {
    f"aten::{name}"
    for name in (
        *("_sparse_addmm", "sspaddmm", "hspmm", "_sparse_sparse_matmul", "sparse_sampled_addmm"),
        *("_sparse_mm_reduce_impl", "_sparse_mm_reduce_impl_backward", "matmul_backward", "quantized_lstm"),
        "quantized_gru",
    )
}
"""Products whose cost shapes do not tell: they are named, not guessed."""

# Operators of these never multiply matrices: views, copies, communication, marks for tools.
_HARMLESS = {
    *("aten", "prim", "prims", "profiler", "record_function_ops", "streams", "rngprims", "debugprims"),
    *("c10d", "c10d_functional", "_c10d_functional", "_c10d_functional_autograd", "fsdp", "_dtensor"),
    *("inductor", "inductor_prims", "_inductor_test"),
}


class Operator:
    """What there is to know of an operator before it is called."""

    def __init__(self, torch: Any, func: Any, registry: Mapping[Any, Any]) -> None:
        self.func = func
        self.name: str = func._schema.name.removesuffix("_")
        self.parameters = [argument.name for argument in func._schema.arguments]
        registered = _registered(registry.get(func._overloadpacket), func._schema)
        self.formula = FORMULAS.get(self.name, registered)
        self.is_suspect = func.namespace not in _HARMLESS or self.name in WITHOUT_FORMULA
        composite = torch._C.DispatchKey.CompositeImplicitAutograd
        is_composite = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), composite)
        self._may_open = self.formula is None and (is_composite or func.namespace not in _HARMLESS)
        self._torch = torch

    def kernel_to_open(self, args: Any, kwargs: Any) -> Any:
        """Which kernel to run to see what the operator is made of; None if that would show nothing.

        The one that would run anyway, never a decomposition written for tracing: those round differently.
        """
        if not self._may_open:
            return None
        tensors = tensors_in(self._torch, (args, kwargs))
        if any(t.layout is not self._torch.strided or t.is_nested or t.is_quantized for t in tensors):
            return None
        core = self._torch._C
        backends = {core._dispatch_key_for_device(tensor.device.type) for tensor in tensors}
        if len(backends) > 1:
            backends.discard("CPU")  # a number, or lengths, beside the data
        if len(backends) != 1:
            return None
        [backend] = backends
        has_kernel = core._dispatch_has_computed_kernel_for_dispatch_key(self.func.name(), backend)
        return core.DispatchKeySet(core._dispatch_key_parse(backend)) if has_kernel else None


def _registered(formula: Any, schema: Any) -> Formula | None:
    """A formula from torch's registry, where libraries put those of their own operators."""
    if formula is None:
        return None
    by_name = {argument.name for argument in schema.arguments if argument.kwarg_only}

    def adapted(arguments: Arguments, out: Any) -> int:
        positional = [value for name, value in arguments.items() if name not in by_name]
        named = {name: value for name, value in arguments.items() if name in by_name}
        return int(formula(*positional, **named, out_val=out))

    return adapted


def tensors_in(torch: Any, value: Any) -> list[Any]:
    """Every tensor among arguments, however deep in lists."""
    if isinstance(value, torch.Tensor):
        return [value]
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return [tensor for part in inner for tensor in tensors_in(torch, part)]
