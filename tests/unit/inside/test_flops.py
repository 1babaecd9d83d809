"""FLOPs of a training step, against hand counts: 2 * m * n * k for each product, and nothing else."""

import contextlib
import functools
import gc
import os
import shutil
import subprocess
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils.checkpoint import (
    checkpoint,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)
from torch.utils.flop_counter import register_flop_formula

from flatout.inside.flop_formulas import FORMULAS
from flatout.inside.flops import FlopCount, FlopTotals, start_counting


@contextlib.contextmanager
def telling(count: FlopCount) -> Iterator[None]:
    """What a session's tap does: tell the count when a backward runs."""
    real = torch.autograd.backward

    @functools.wraps(real)
    def backward(*args: Any, **kwargs: Any) -> None:
        count.in_backward = True
        try:
            real(*args, **kwargs)
        finally:
            count.in_backward = False

    torch.autograd.backward = backward
    try:
        yield
    finally:
        torch.autograd.backward = real


def counted(step: Callable[[], Any]) -> FlopTotals:
    """Count a step, and the backward from the loss that it returns."""
    before = _get_current_dispatch_mode_stack()
    count = start_counting(torch)
    try:
        with telling(count):
            loss = step()
            if isinstance(loss, Tensor) and loss.requires_grad:
                loss.sum().backward()
    finally:
        totals = count.stop()
    assert _get_current_dispatch_mode_stack() == before
    assert sum(totals.by_operator.values()) == totals.flops
    return totals


class Block(nn.Module):
    def __init__(self, width: int, heads: int, attention: str) -> None:
        super().__init__()
        self.heads, self.attention = heads, attention
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = heads
        if self.attention == "sdpa":
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
            ahead = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            y = scores.masked_fill(ahead, float("-inf")).softmax(-1).to(v.dtype) @ v
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(
        self, attention: str, width: int = 32, layers: int = 2, heads: int = 4, *, checkpointed: str = ""
    ) -> None:
        super().__init__()
        self.checkpointed = checkpointed
        self.vocabulary, self.length = 65, 16
        self.tokens, self.places = nn.Embedding(65, width), nn.Embedding(16, width)
        self.blocks = nn.ModuleList(Block(width, heads, attention) for _ in range(layers))
        self.head = nn.Linear(width, 65, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            if self.checkpointed:
                x = checkpoint(block, x, use_reentrant=self.checkpointed == "reentrant")
            else:
                x = block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), tokens.flatten())


def gpt_flops(
    batch: int = 3, width: int = 32, layers: int = 2, length: int = 16, vocabulary: int = 65
) -> int:
    """6 for each matrix element used in a product, and 12 * L * d * T, a token."""
    used = layers * 12 * width**2 + width * vocabulary
    return batch * length * (6 * used + 12 * layers * width * length)


def tokens(batch: int = 3) -> Tensor:
    return torch.randint(0, 65, (batch, 16), generator=torch.Generator().manual_seed(1))


# Dense layers -----------------------------------------------------------------------------------------------


def test_a_linear_layer_costs_two_products_where_the_input_needs_no_gradient() -> None:
    layer, x = nn.Linear(5, 7), torch.randn(3, 5)
    totals = counted(lambda: F.mse_loss(layer(x), torch.randn(3, 7)))
    seen = totals.operators
    assert totals == FlopTotals(
        2 * 2 * 3 * 5 * 7, 0, {"aten.addmm": 2 * 3 * 5 * 7, "aten.mm": 2 * 3 * 5 * 7}, {}, seen
    )
    assert {"aten.addmm", "aten.mm", "aten.mse_loss"} <= set(seen)


def test_a_linear_layer_costs_three_products_where_the_input_needs_a_gradient() -> None:
    layer, x = nn.Linear(5, 7), torch.randn(3, 5, requires_grad=True)
    assert counted(lambda: layer(x)).flops == 3 * 2 * 3 * 5 * 7


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape)


@pytest.mark.parametrize(
    ("product", "flops"),
    [
        (lambda: randn(2, 3) @ randn(3, 4), 2 * 2 * 3 * 4),
        (lambda: randn(5, 2, 3) @ randn(3, 4), 5 * 2 * 2 * 3 * 4),
        (lambda: randn(2, 3) @ randn(3), 2 * 2 * 3),
        (lambda: randn(3) @ randn(3), 2 * 3),
        (lambda: torch.addmv(randn(2), randn(2, 3), randn(3)), 2 * 2 * 3),
        (lambda: randn(2, 4).addmm_(randn(2, 3), randn(3, 4)), 2 * 2 * 3 * 4),
        (lambda: torch.addbmm(randn(2, 4), randn(5, 2, 3), randn(5, 3, 4)), 5 * 2 * 2 * 3 * 4),
        (lambda: torch.baddbmm(randn(5, 2, 4), randn(5, 2, 3), randn(5, 3, 4)), 5 * 2 * 2 * 3 * 4),
        (lambda: torch.einsum("bik,bjk->bij", randn(5, 2, 3), randn(5, 4, 3)), 5 * 2 * 2 * 3 * 4),
        (lambda: torch.tensordot(randn(2, 3, 6), randn(3, 6, 4), 2), 2 * 2 * 18 * 4),
        (lambda: F.bilinear(randn(5, 2), randn(5, 3), randn(4, 2, 3)), 2 * 5 * 4 * 2 * 3),
        (lambda: torch.conv_tbc(randn(6, 5, 2), randn(3, 2, 4), randn(4)), 2 * 4 * 5 * 4 * 3 * 2),
        (lambda: torch._int_mm(*(torch.ones(32, 32, dtype=torch.int8),) * 2), 2 * 32**3),
        (lambda: torch.mm(randn(2, 3), randn(3, 4), out=torch.empty(2, 4)), 2 * 2 * 3 * 4),
        (lambda: randn(4, 4) * randn(4, 4) + randn(4, 4).exp().sum(), 0),
    ],
)
@pytest.mark.parametrize("mode", [contextlib.nullcontext, torch.no_grad, torch.inference_mode])
def test_each_product_counts_once_in_every_mode(
    product: Callable[[], Tensor], flops: int, mode: Callable[[], Any]
) -> None:
    def step() -> None:
        with mode():
            product()

    totals = counted(step)
    assert (totals.flops, totals.recomputed_flops, totals.uncounted) == (flops, 0, {})


def test_grouped_products_count_each_row_once_forward_and_backward() -> None:
    if not hasattr(torch, "_grouped_mm"):
        pytest.skip("this torch has no grouped products")
    rows = torch.randn(6, 16, dtype=torch.bfloat16, requires_grad=True)
    experts = torch.randn(2, 16, 8, dtype=torch.bfloat16, requires_grad=True)
    ends = torch.tensor([2, 6], dtype=torch.int32)
    assert counted(lambda: torch._grouped_mm(rows, experts, ends) ** 2).flops == 3 * 2 * 6 * 16 * 8


# Transformers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attention", ["by hand", "sdpa"])
def test_the_shape_of_attention_is_seen_fused_or_not(attention: str) -> None:
    model, batch = GPT(attention), tokens()
    count = start_counting(torch)
    model(batch).sum().backward()
    totals = count.stop()
    assert totals.attention == (batch.shape[0], 4, batch.shape[1], batch.shape[1], 8)
    assert totals.attentions == len(model.blocks)


@pytest.mark.parametrize("attention", ["by hand", "sdpa"])
def test_a_gpt_costs_what_the_formula_says(attention: str) -> None:
    model, batch = GPT(attention), tokens()
    totals = counted(lambda: model(batch))
    assert totals.flops == gpt_flops()
    assert (totals.recomputed_flops, totals.uncounted) == (0, {})


def test_a_gpt_costs_the_same_under_autocast() -> None:
    model, batch = GPT("sdpa"), tokens()

    def step() -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss: Tensor = model(batch)
        return loss

    assert counted(step).flops == gpt_flops()


def test_a_gpt_costs_the_same_on_the_meta_device() -> None:
    with torch.device("meta"):
        model, batch = GPT("sdpa"), torch.zeros(3, 16, dtype=torch.long)
    totals = counted(lambda: model(batch))
    assert (totals.flops, totals.uncounted) == (gpt_flops(), {})


def test_micro_batches_add_up() -> None:
    model = GPT("sdpa")

    def step() -> None:
        for _ in range(4):
            model(tokens()).backward()

    assert counted(step).flops == 4 * gpt_flops()


def test_an_evaluation_within_the_step_costs_its_forward() -> None:
    model = GPT("sdpa")

    def step() -> None:
        with torch.no_grad():
            model(tokens())

    assert 3 * counted(step).flops == gpt_flops()


@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])
def test_grouped_queries_and_other_lengths_cost_the_same_in_every_backend(backend: SDPBackend) -> None:
    q, k, v = (torch.randn(2, h, s, 8, requires_grad=True) for h, s in ((6, 5), (2, 7), (2, 7)))

    def step() -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    assert counted(step).flops == (2 + 4) * 2 * (2 * 6) * 5 * 7 * 8


@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])
def test_keys_and_values_that_need_no_gradient_cost_none(backend: SDPBackend) -> None:
    q, (k, v) = torch.randn(1, 2, 5, 8, requires_grad=True), torch.randn(2, 1, 2, 7, 8)

    def step() -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v)

    assert counted(step).flops == (2 + 2) * 2 * 2 * 5 * 7 * 8


def sdpa_operators() -> list[str]:
    kinds = ("flash", "efficient", "cudnn")
    return [f"_scaled_dot_product_{kind}_attention" for kind in kinds]


@pytest.mark.parametrize("name", sdpa_operators())
def test_fused_attention_of_gpus_costs_two_products_forward_and_four_backward(name: str) -> None:
    q, k, v = (torch.randn(2, 6, s, d, device="meta") for s, d in ((5, 8), (7, 8), (7, 16)))
    product = 2 * (2 * 6) * 5 * 7
    names = {"query": q, "key": k, "value": v}
    assert FORMULAS[f"aten::{name}"](names, None) == product * (8 + 16)
    assert FORMULAS[f"aten::{name}_backward"](names, None) == 2 * product * (8 + 16)


def test_fused_attention_on_meta_tensors_comes_by_as_on_a_gpu() -> None:
    q = torch.randn(2, 6, 5, 8, device="meta", dtype=torch.bfloat16)
    forward = torch.ops.aten._scaled_dot_product_flash_attention
    assert counted(lambda: forward(q, q, q)[0]).flops == 2 * 2 * 12 * 5 * 5 * 8


def test_a_head_that_flash_attention_padded_costs_its_own_size() -> None:
    q = torch.randn(2, 6, 5, 24, device="meta")
    names = {"query": q, "key": q, "value": q}
    formula = FORMULAS["aten::_scaled_dot_product_flash_attention"]
    assert formula({**names, "scale": 20**-0.5}, None) == 2 * 2 * 12 * 5 * 5 * 20
    assert formula({**names, "scale": 24**-0.5}, None) == 2 * 2 * 12 * 5 * 5 * 24
    assert formula({**names, "scale": 0.125}, None) == 2 * 2 * 12 * 5 * 5 * 24


@pytest.mark.parametrize(
    ("name", "layout", "starts"),
    [
        ("aten::_flash_attention_{}", (8, 6, 4), "cum_seq_{}"),
        ("aten::_efficient_attention_{}", (1, 8, 6, 4), "cu_seqlens_{}"),
        ("flash_attn::_flash_attn_varlen_{}", (8, 6, 4), "cu_seqlens_{}"),
    ],
)
def test_packed_sequences_cost_what_each_attends_to(name: str, layout: tuple[int, ...], starts: str) -> None:
    q = torch.randn(layout)
    names: dict[str, Any] = dict.fromkeys(
        ("q", "k", "v") if "flash_attn:" in name else ("query", "key", "value"), q
    )
    offsets = torch.tensor([0, 3, 8], dtype=torch.int32)
    names.update({starts.format("q"): offsets, starts.format("k"): offsets})
    product = 2 * 6 * (3 * 3 + 5 * 5) * 4
    assert FORMULAS[name.format("forward")](names, None) == 2 * product
    assert FORMULAS[name.format("backward")](names, None) == 4 * product


def test_flex_attention_costs_the_whole_matrix_of_scores() -> None:
    q, k, v = (torch.randn(2, h, s, 8) for h, s in ((4, 16), (2, 32), (2, 32)))

    def step() -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out: Tensor = flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + i - j, enable_gqa=True)
        return out

    expected = step()
    out = []
    totals = counted(lambda: out.append(step()))
    assert (totals.flops, totals.uncounted) == (2 * 2 * (2 * 4) * 16 * 32 * 8, {})
    assert torch.equal(out[0], expected)


def test_flex_attention_costs_four_products_backward() -> None:
    # Its front door refuses gradients on CPU tensors; the operator behind it does not.
    private: Any = torch.nn.attention.flex_attention
    operator: Any = torch.ops.higher_order.flex_attention
    q, k, v = (torch.randn(2, h, s, 8, requires_grad=True) for h, s in ((4, 16), (2, 32), (2, 32)))
    mask = private._create_empty_block_mask(q, k).as_tuple()

    def step() -> Tensor:
        out: Tensor = operator(q, k, v, lambda s, b, h, i, j: s * 1.5, mask, 0.3, {"OUTPUT_LOGSUMEXP": True})[
            0
        ]
        return out

    totals = counted(step)
    assert (totals.flops, totals.uncounted) == (6 * 2 * (2 * 4) * 16 * 32 * 8, {})


def test_the_fast_path_of_an_encoder_layer_costs_what_its_slow_path_does() -> None:
    layer, x = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), torch.randn(3, 5, 8)

    def step() -> None:
        with torch.no_grad():
            layer(x)

    matrices = 8 * 24 + 8 * 8 + 2 * 8 * 16
    assert counted(step).flops == 2 * 15 * matrices + 2 * 2 * 3 * 5 * 5 * 8
    layer.train()
    assert counted(step).flops == 2 * 15 * matrices + 2 * 2 * 3 * 5 * 5 * 8


# Convolutions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "shape", "forward"),
    [
        (nn.Conv1d(4, 6, 3), (2, 4, 9), 2 * 2 * 7 * 6 * 4 * 3),
        (nn.Conv2d(4, 6, 3, stride=2, padding=1), (2, 4, 9, 9), 2 * 2 * 25 * 6 * 4 * 9),
        (nn.Conv2d(4, 6, 3, groups=2, bias=False), (2, 4, 9, 9), 2 * 2 * 49 * 6 * 2 * 9),
        (nn.Conv2d(4, 4, 3, groups=4), (2, 4, 9, 9), 2 * 2 * 49 * 4 * 9),
        (nn.Conv3d(2, 3, 2), (2, 2, 4, 4, 4), 2 * 2 * 27 * 3 * 2 * 8),
        (nn.ConvTranspose1d(4, 6, 3), (2, 4, 9), 2 * 2 * 9 * 6 * 4 * 3),
        (nn.ConvTranspose2d(4, 6, 2, stride=2), (2, 4, 5, 5), 2 * 2 * 25 * 4 * 6 * 4),
        (nn.ConvTranspose2d(4, 6, 2, stride=2, groups=2), (2, 4, 5, 5), 2 * 2 * 25 * 4 * 3 * 4),
    ],
)
@pytest.mark.parametrize("needs_gradient", [True, False])
def test_a_convolution_costs_its_forward_again_for_each_gradient(
    layer: nn.Module, shape: tuple[int, ...], forward: int, needs_gradient: bool
) -> None:
    x = torch.randn(shape, requires_grad=needs_gradient)
    assert counted(lambda: layer(x)).flops == (3 if needs_gradient else 2) * forward


def test_a_bottleneck_as_in_resnet_50() -> None:
    class Bottleneck(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False)
            self.down, self.mid = nn.Conv2d(8, 4, 1, bias=False), nn.Conv2d(4, 4, 3, 2, 1, bias=False)
            self.up, self.short = nn.Conv2d(4, 16, 1, bias=False), nn.Conv2d(8, 16, 1, 2, bias=False)
            self.norms = nn.ModuleList(nn.BatchNorm2d(n) for n in (8, 4, 4, 16, 16))
            self.head = nn.Linear(16, 10)

        def forward(self, x: Tensor) -> Tensor:
            n = self.norms
            x = F.max_pool2d(n[0](self.stem(x)).relu(), 3, 2, 1)
            y = n[3](self.up(n[2](self.mid(n[1](self.down(x)).relu())).relu()))
            out: Tensor = self.head((y + n[4](self.short(x))).relu().mean((2, 3)))
            return out

    model, batch = Bottleneck(), 2
    # 32 -> 16 by the stem's stride, 8 by the pool, 4 by the block's stride.
    stem = 2 * batch * 16 * 16 * 8 * 3 * 49
    rest = 2 * batch * (8 * 8 * 4 * 8 + 4 * 4 * 4 * 4 * 9 + 4 * 4 * 16 * 4 + 4 * 4 * 16 * 8 + 10 * 16)
    totals = counted(lambda: F.cross_entropy(model(torch.randn(batch, 3, 32, 32)), torch.tensor([1, 2])))
    assert (totals.flops, totals.uncounted) == (2 * stem + 3 * rest, {})


# Recurrent layers -------------------------------------------------------------------------------------------

GATES = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}


def states(kind: type[nn.RNNBase], *shape: int, **options: Any) -> Any:
    first = torch.zeros(*shape, **options)
    return (first, torch.zeros(*shape, **options)) if kind is nn.LSTM else first


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_recurrent_layer_costs_three_times_its_forward(
    kind: type[nn.RNNBase], bias: bool, device: str
) -> None:
    length, batch, inputs, hidden = 6, 3, 5, 7
    layer = kind(inputs, hidden, bias=bias, device=device)
    x = torch.randn(length, batch, inputs, requires_grad=True, device=device)
    first = states(kind, 1, batch, hidden, requires_grad=True, device=device)
    forward = 2 * length * batch * GATES[kind] * hidden * (inputs + hidden)
    assert counted(lambda: layer(x, first)[0]).flops == 3 * forward


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("onednn", [True, False])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_gradients_that_nobody_asks_of_a_recurrent_layer_cost_nothing(
    kind: type[nn.RNNBase], onednn: bool, device: str
) -> None:
    length, batch, inputs, hidden = 6, 3, 5, 7
    layer = kind(inputs, hidden, num_layers=2, bidirectional=True, device=device)
    rows = GATES[kind] * hidden
    below, above = 2 * rows * (inputs + hidden), 2 * rows * (2 * hidden + hidden)
    forward = 2 * length * batch * (below + above)
    spared = 2 * length * batch * 2 * rows * inputs + 2 * batch * 4 * rows * hidden

    def step() -> Tensor:
        with torch.backends.mkldnn.flags(enabled=onednn):
            out: Tensor = layer(torch.randn(length, batch, inputs, device=device))[0]
        return out

    assert counted(step).flops == 3 * forward - spared


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_frozen_recurrent_layer_costs_twice_its_forward(kind: type[nn.RNNBase], device: str) -> None:
    layer = kind(5, 7, device=device).requires_grad_(False)
    x = torch.randn(6, 3, 5, requires_grad=True, device=device)
    first = states(kind, 1, 3, 7, requires_grad=True, device=device)
    assert counted(lambda: layer(x, first)[0]).flops == 2 * 2 * 18 * GATES[kind] * 7 * (5 + 7)


@pytest.mark.parametrize("kind", GATES)
def test_a_packed_sequence_costs_its_own_steps_only(kind: type[nn.RNNBase]) -> None:
    layer, rows = kind(5, 7, bidirectional=True), GATES[kind] * 7
    sequences = [torch.randn(length, 5) for length in (6, 4, 1)]

    def step() -> Tensor:
        out: Tensor = layer(nn.utils.rnn.pack_sequence(sequences))[0].data
        return out

    forward = 2 * 11 * 2 * rows * (5 + 7)
    # Forwards, three sequences begin at the first step; backwards, the longest alone.
    spared = 2 * 11 * 2 * rows * 5 + 2 * (3 + 1) * rows * 7
    assert counted(step).flops == 3 * forward - spared


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_a_projection_is_one_more_matrix() -> None:
    layer = nn.LSTM(5, 7, proj_size=3)
    x, h, c = (torch.randn(*s, requires_grad=True) for s in ((6, 2, 5), (1, 2, 3), (1, 2, 7)))
    assert counted(lambda: layer(x, (h, c))[0]).flops == 3 * 2 * 6 * 2 * (28 * (5 + 3) + 7 * 3)


@pytest.mark.parametrize("kind", GATES)
def test_a_recurrent_layer_costs_its_forward_in_inference_mode(kind: type[nn.RNNBase]) -> None:
    layer, x = kind(5, 7), torch.randn(6, 3, 5)

    def step() -> None:
        with torch.inference_mode():
            layer(x)

    assert counted(step).flops == 2 * 18 * GATES[kind] * 7 * (5 + 7)


@pytest.mark.parametrize("name", ["_cudnn_rnn", "miopen_rnn"])
@pytest.mark.parametrize("sizes", [[], [3, 3, 2, 1]])
def test_the_fused_recurrent_layers_of_gpus_cost_what_the_plain_ones_do(name: str, sizes: list[int]) -> None:
    layer = nn.LSTM(5, 7, num_layers=2, bidirectional=True, device="meta")
    steps, ends = (sum(sizes), sizes[-1]) if sizes else (6 * 3, 3)
    arguments = {
        "input": torch.empty(*((steps,) if sizes else (6, 3)), 5, device="meta"),
        "weight": list(layer.parameters()),
        "weight_stride0": 4,
        "hx": torch.empty(4, 3, 7, device="meta"),
        "bidirectional": True,
        "batch_sizes": sizes,
    }
    forward = 2 * steps * 2 * 28 * (5 + 7 + 14 + 7)
    of_input, of_state = 2 * steps * 2 * 28 * 5, 2 * 2 * (3 + ends) * 28 * 7
    backward = FORMULAS[f"aten::{name}_backward"]
    assert FORMULAS[f"aten::{name}"](arguments, None) == forward
    assert backward({**arguments, "output_mask": [1, 1, 1, 1]}, None) == 2 * forward
    assert backward({**arguments, "output_mask": [0, 1, 1, 1]}, None) == 2 * forward - of_input
    assert backward({**arguments, "output_mask": [1, 1, 1, 0]}, None) == forward
    assert backward({**arguments, "output_mask": [0, 0, 0, 1]}, None) == 2 * forward - of_input - of_state


# Recomputation ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["reentrant", "not reentrant"])
def test_a_checkpoint_changes_what_is_recomputed_and_nothing_else(kind: str) -> None:
    model, batch = GPT("sdpa", checkpointed=kind), tokens()
    with set_checkpoint_early_stop(False):
        totals = counted(lambda: model(batch))
    assert totals.flops == gpt_flops()
    assert totals.recomputed_flops == 48 * (2 * 2 * 12 * 32**2 + 4 * 2 * 32 * 16)


def test_a_checkpoint_that_stops_early_recomputes_less() -> None:
    block = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 6))
    x = torch.randn(3, 4, requires_grad=True)
    totals = counted(lambda: checkpoint(block, x, use_reentrant=False))
    assert totals.flops == 3 * 2 * 3 * (4 * 5 + 5 * 6)
    assert totals.recomputed_flops == 2 * 3 * 4 * 5


def test_a_checkpoint_in_a_gradient_taken_by_hand_is_found_too() -> None:
    block, x = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 6)), torch.randn(3, 4)

    def step() -> None:
        loss = checkpoint(block, x, use_reentrant=False).sum()
        torch.autograd.grad(loss, list(block.parameters()))

    assert counted(step).recomputed_flops == 2 * 3 * 4 * 5


def test_what_a_selective_checkpoint_keeps_is_not_recomputed() -> None:
    block, x = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 6)), torch.randn(3, 4)
    keeps = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])
    totals = counted(lambda: checkpoint(block, x, use_reentrant=False, context_fn=keeps))
    assert (totals.flops, totals.recomputed_flops) == (2 * 2 * 3 * 4 * 5 + 3 * 2 * 3 * 5 * 6, 0)


def test_recomputation_by_a_function_of_the_job_is_told_by_the_caller() -> None:
    class Recomputing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
            ctx.save_for_backward(x, weight)
            return (x @ weight).relu()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            x, weight = (saved.detach().requires_grad_() for saved in ctx.saved_tensors)
            with torch.enable_grad():
                out = (x @ weight).relu()
            return torch.autograd.grad(out, (x, weight), grad)

    x, weight = torch.randn(3, 4, requires_grad=True), torch.randn(4, 5, requires_grad=True)
    totals = counted(lambda: Recomputing.apply(x, weight))
    assert (totals.flops, totals.recomputed_flops) == (3 * 2 * 3 * 4 * 5, 2 * 3 * 4 * 5)


def test_a_graph_of_the_backward_is_not_recomputation() -> None:
    layer, x = nn.Linear(4, 5, bias=False), torch.randn(3, 4, requires_grad=True)
    product = 2 * 3 * 4 * 5

    def penalty() -> None:
        (slope,) = torch.autograd.grad((layer(x) ** 2).sum(), x, create_graph=True)
        (slope**2).sum().backward()

    def by_backward() -> None:
        (layer(x) ** 2).sum().backward(create_graph=True)
        x.grad = layer.weight.grad = None  # else they hold one another

    totals = counted(penalty)
    # The forward and the slope; then through the slope's product (2) and through the forward's (2).
    assert (totals.flops, totals.recomputed_flops) == (6 * product, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        totals = counted(by_backward)
    assert (totals.flops, totals.recomputed_flops) == (3 * product, 0)


# Compiled models --------------------------------------------------------------------------------------------


def compiled(how: str, model: GPT) -> Callable[[Tensor], Tensor]:
    if how == "in place":
        model.compile(backend="aot_eager")
        return model

    def function(batch: Tensor) -> Tensor:
        loss: Tensor = model(batch)
        return loss

    result: Callable[[Tensor], Tensor] = torch.compile(
        model if how == "module" else function, backend="aot_eager"
    )
    return result


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, in torch
@pytest.mark.parametrize("how", ["module", "function", "in place"])
@pytest.mark.parametrize("warm", [True, False])
def test_a_compiled_model_costs_what_it_costs_uncompiled(how: str, warm: bool) -> None:
    torch._dynamo.reset()
    model, batch = GPT("sdpa", layers=1), tokens()
    call = compiled(how, model)
    if warm:
        call(batch).backward()
    totals = counted(lambda: call(batch))
    assert (totals.flops, totals.recomputed_flops, totals.uncounted) == (gpt_flops(layers=1), 0, {})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_checkpoint_within_a_compiled_model_is_recomputation() -> None:
    torch._dynamo.reset()
    model, batch = GPT("sdpa", layers=1, checkpointed="not reentrant"), tokens()
    with set_checkpoint_early_stop(False):
        totals = counted(lambda: torch.compile(model, backend="aot_eager")(batch))
    assert totals.flops == gpt_flops(layers=1)
    assert totals.recomputed_flops == 48 * (2 * 12 * 32**2 + 4 * 32 * 16)


@pytest.mark.skipif(shutil.which("c++") is None, reason="the compiler needs one for C++")
@pytest.mark.filterwarnings("ignore")
def test_a_model_compiled_by_inductor_costs_the_same_and_stays_compiled() -> None:
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 6))
    compiled, x = torch.compile(model), torch.randn(3, 4)
    before = compiled(x)
    assert counted(lambda: compiled(x)).flops == 2 * 2 * 3 * (4 * 5) + 3 * 2 * 3 * 5 * 6
    with torch.compiler.set_stance("fail_on_recompile"):
        assert torch.equal(compiled(x), before)


def test_the_compiler_is_not_loaded_to_be_turned_off_and_is_off_when_the_job_loads_it() -> None:
    script = """
import sys, torch
from flatout.inside.flops import start_counting
layer, x = torch.nn.Linear(4, 5), torch.randn(3, 4)
count = start_counting(torch)
layer(x).sum().backward()
print(count.stop().flops, "torch._dynamo" in sys.modules)
count = start_counting(torch)
assert "torch._dynamo" not in sys.modules
torch.compile(layer, backend="aot_eager")(x)
print(torch._dynamo.eval_frame._stance.stance, count.stop().flops, torch._dynamo.eval_frame._stance.stance)
start_counting(torch).stop()
print(torch._dynamo.eval_frame._stance.stance)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    # Three rows through four by five, and the gradient of the weight: nobody asks for that of `x`.
    assert done.stdout.splitlines() == ["240 False", "force_eager 120 default", "default"]


def test_the_compiler_takes_up_its_stance_again() -> None:
    frame: Any = torch._dynamo.eval_frame
    found = frame._stance
    count = start_counting(torch)
    assert frame._stance.stance == "force_eager"
    count.stop()
    assert frame._stance is found
    with torch.compiler.set_stance("eager_on_recompile"):
        found = frame._stance
        start_counting(torch).stop()
        assert frame._stance is found


def test_a_stance_that_the_job_takes_while_counting_stays() -> None:
    frame: Any = torch._dynamo.eval_frame
    count = start_counting(torch)
    torch.compiler.set_stance("eager_on_recompile")
    count.stop()
    try:
        assert frame._stance.stance == "eager_on_recompile"
    finally:
        torch.compiler.set_stance("default")


def test_a_branch_keeps_the_gradients_of_what_it_captures() -> None:
    weight, x = torch.randn(4, 5, requires_grad=True), torch.randn(3, 4, requires_grad=True)

    def step() -> Tensor:
        out: Tensor = torch.cond(x.sum() < 1e9, lambda x: x @ weight, lambda x: (x * 2) @ weight, (x,))
        return out

    step().sum().backward()
    assert weight.grad is not None
    expected, weight.grad = weight.grad, None
    totals = counted(step)
    # torch's backward of a branch runs the branch once more.
    assert (totals.flops, totals.uncounted) == ((3 + 1) * 2 * 3 * 4 * 5, {})
    assert torch.equal(weight.grad, expected)


# Leaving no trace -------------------------------------------------------------------------------------------


def trained(count: bool) -> tuple[list[Tensor], Tensor]:
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.GELU(), nn.Linear(16, 8))
    lstm, attention = nn.LSTM(8, 8, dropout=0.2, num_layers=2), nn.MultiheadAttention(8, 2, dropout=0.1)
    parameters = [p for m in (model, lstm, attention) for p in m.parameters()]
    optimizer = torch.optim.AdamW(parameters)
    seen = []
    for _ in range(3):
        handle = start_counting(torch) if count else None
        x = lstm(model(torch.randn(5, 3, 8)))[0]
        loss = attention(x, x, x)[0].square().mean()
        optimizer.zero_grad()
        loss.backward()
        with torch.inference_mode():
            lstm.eval()
            seen.append(lstm(model(torch.ones(5, 3, 8)))[0].sum())
            lstm.train()
        if handle is not None:
            assert handle.stop().flops > 0
        optimizer.step()
        seen.append(loss.detach())
    return [*seen, *(p.detach() for p in parameters)], torch.get_rng_state()


def test_losses_parameters_and_random_numbers_are_the_same_bit_for_bit() -> None:
    plain, plain_state = trained(count=False)
    watched, watched_state = trained(count=True)
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    assert torch.equal(plain_state, watched_state)


def test_no_tensor_is_kept_alive() -> None:
    layer = nn.Linear(4, 5)
    count = start_counting(torch)
    gc.disable()
    try:
        x = torch.randn(3, 4)
        out = layer(x)
        watched = weakref.ref(x), weakref.ref(out)
        del x, out
        assert [ref() for ref in watched] == [None, None]
    finally:
        gc.enable()
        count.stop()


def test_an_exception_of_the_job_passes_and_leaves_nothing_behind() -> None:
    flags: Any = torch.utils._python_dispatch
    before = flags.is_in_torch_dispatch_mode(), torch._dynamo.eval_frame._stance
    layer = nn.Linear(4, 5)

    def step() -> None:
        layer(torch.randn(3, 4))
        layer(torch.randn(3, 5))

    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        counted(step)
    assert (flags.is_in_torch_dispatch_mode(), torch._dynamo.eval_frame._stance) == before


class Passing(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_modes_of_the_job_may_be_entered_and_left_in_any_order() -> None:
    flags: Any = torch.utils._python_dispatch
    layer, x = nn.Linear(4, 5), torch.randn(3, 4)
    first, second = Passing(), Passing()
    first.__enter__()
    count = start_counting(torch)
    layer(x)
    first.__exit__(None, None, None)
    layer(x)
    second.__enter__()
    layer(x)
    assert count.stop().flops == 3 * 2 * 3 * 4 * 5
    assert _get_current_dispatch_mode_stack() == [second]
    second.__exit__(None, None, None)
    assert _get_current_dispatch_mode_stack() == []
    assert not flags.is_in_torch_dispatch_mode()


def test_stopping_twice_answers_the_same() -> None:
    count = start_counting(torch)
    torch.ones(2, 3) @ torch.ones(3, 4)
    first = count.stop()
    torch.ones(2, 3) @ torch.ones(3, 4)
    assert count.stop() == first
    assert first.flops == 48


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore")
def test_a_child_forked_while_counting_is_left_alone() -> None:
    count = start_counting(torch)
    child = os.fork()
    if child == 0:
        os._exit(len(_get_current_dispatch_mode_stack()))
    assert os.waitpid(child, 0)[1] == 0
    assert len(_get_current_dispatch_mode_stack()) == 1
    count.stop()


def test_torch_is_not_imported_with_the_module() -> None:
    code = "import sys, flatout.inside.flops; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# What cannot be counted -------------------------------------------------------------------------------------


@torch.library.custom_op("flops_test::open", mutates_args=())
def made_of_operators(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


@torch.library.custom_op("flops_test::hidden", mutates_args=())
def made_elsewhere(a: Tensor, b: Tensor) -> Tensor:
    return torch.from_numpy(a.numpy() @ b.numpy())


@torch.library.custom_op("flops_test::told", mutates_args=())
def made_elsewhere_but_told(a: Tensor, b: Tensor, *, twice: bool = False) -> Tensor:
    return torch.from_numpy(a.numpy() @ b.numpy())


@register_flop_formula(torch.ops.flops_test.told)
def _told(a: Any, b: Any, *, twice: bool = False, **_: Any) -> int:
    return 1000 + twice


def test_an_operator_of_the_job_is_seen_through_where_it_is_made_of_torchs() -> None:
    totals = counted(lambda: made_of_operators(torch.randn(2, 3), torch.randn(3, 4)))
    assert (totals.flops, totals.uncounted) == (48, {})


def test_an_operator_that_hides_its_work_is_named() -> None:
    totals = counted(lambda: [made_elsewhere(torch.randn(2, 3), torch.randn(3, 4)) for _ in range(2)])
    assert (totals.flops, totals.uncounted) == (0, {"flops_test.hidden": 2})


def test_a_formula_that_the_job_registered_is_used() -> None:
    totals = counted(lambda: made_elsewhere_but_told(torch.randn(2, 3), torch.randn(3, 4), twice=True))
    assert (totals.flops, totals.uncounted) == (1001, {})


def test_sparse_products_are_named_not_guessed() -> None:
    totals = counted(lambda: torch.sparse.mm(torch.eye(3).to_sparse(), torch.randn(3, 4)))
    assert totals.flops == 0
    assert totals.uncounted


def test_what_torch_does_for_its_tools_is_not_named() -> None:
    def step() -> None:
        with torch.profiler.record_function("mine"):
            torch.randn(3).exp()

    assert counted(step).uncounted == {}


@pytest.mark.filterwarnings("ignore")
def test_a_tensor_subclass_is_counted_by_what_it_is_made_of() -> None:
    ragged: Any = torch.nested.nested_tensor([torch.randn(3, 4), torch.randn(5, 4)], layout=torch.jagged)
    layer = nn.Linear(4, 6)
    assert counted(lambda: layer(ragged).values()).flops == 2 * 2 * 8 * 4 * 6


def test_fake_tensors_beside_the_job_are_not_counted_and_those_of_the_job_are() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    def product() -> None:
        torch.randn(2, 3) @ torch.randn(3, 4)

    def shadow() -> None:
        with FakeTensorMode():
            product()

    assert counted(shadow).flops == 0
    with FakeTensorMode():
        assert counted(product).flops == 48


def wrapped(how: str, model: nn.Module) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    if how == "data parallel":
        return nn.parallel.DistributedDataParallel(model)
    mesh = init_device_mesh("cpu", (1,))
    if how == "sharded":
        return fully_shard(model, mesh=mesh)
    return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", ["data parallel", "sharded", "tensor parallel"])
def test_a_model_on_one_rank_of_one_costs_what_it_costs_alone(how: str, tmp_path: Path) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = wrapped(how, nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 6)))
        totals = counted(lambda: model(torch.randn(3, 4)))
        assert (totals.flops, totals.uncounted) == (2 * 2 * 3 * 4 * 5 + 3 * 2 * 3 * 5 * 6, {})
    finally:
        dist.destroy_process_group()


def test_bytes_are_those_that_move() -> None:
    table, weights = nn.Embedding(100_000, 8), torch.zeros(1000)
    picked = torch.tensor([1, 2, 3])
    count = start_counting(torch)
    table(picked)
    weights.zero_()
    moved = {name: size for name, _, size, _, _ in count.stop().moves}
    assert moved["aten::embedding"] == 2 * 3 * 8 * 4 + 3 * 8
    assert moved["aten::zero"] == 4000
