"""FLOPs counted on a GPU: the same as on a CPU, whichever kernels run and whichever threads run them."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention

from tests.unit.inside.test_flops import GATES, GPT, counted, gpt_flops, tokens

FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]


def stepping(model: Callable[[Tensor], Tensor], batch: Tensor, *contexts: Any) -> Callable[[], Tensor]:
    def step() -> Tensor:
        with contextlib.ExitStack() as stack:
            for context in contexts:
                stack.enter_context(context())
            return model(batch)

    return step


def bf16() -> torch.autocast:
    return torch.autocast("cuda", dtype=torch.bfloat16)


@pytest.mark.parametrize("attention", ["by hand", "sdpa"])
@pytest.mark.parametrize("contexts", [(), (bf16,)], ids=["fp32", "bf16"])
def test_a_gpt_costs_what_the_formula_says(attention: str, contexts: tuple[Any, ...]) -> None:
    totals = counted(stepping(GPT(attention).cuda(), tokens().cuda(), *contexts))
    assert (totals.flops, totals.recomputed_flops, totals.uncounted) == (gpt_flops(), 0, {})


@pytest.mark.parametrize("backend", [*FUSED, SDPBackend.MATH], ids=lambda backend: backend.name)
@pytest.mark.parametrize("width", [32, 80], ids=["heads of 8", "heads of 20"])
def test_every_backend_of_attention_costs_the_same(backend: SDPBackend, width: int) -> None:
    if width == 80 and backend in (SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        pytest.skip("takes heads of a multiple of 8 only")
    model = GPT("sdpa", width=width).cuda()
    totals = counted(stepping(model, tokens().cuda(), bf16, lambda: sdpa_kernel(backend)))
    assert (totals.flops, totals.uncounted) == (gpt_flops(width=width), {})
    fused = [name for name in totals.by_operator if "scaled_dot_product" in name]
    assert len(fused) == (0 if backend is SDPBackend.MATH else 2), totals.by_operator


@pytest.mark.parametrize("backend", [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH], ids=lambda b: b.name)
def test_grouped_queries_cost_the_same_in_every_backend(backend: SDPBackend) -> None:
    shapes = ((2, 6, 64, 16), (2, 2, 128, 16), (2, 2, 128, 16))
    q, k, v = (torch.randn(s, device="cuda", dtype=torch.bfloat16, requires_grad=True) for s in shapes)

    def step() -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    assert counted(step).flops == 6 * 2 * (2 * 6) * 64 * 128 * 16


@pytest.mark.filterwarnings("ignore")
def test_attention_over_ragged_sequences_costs_what_each_attends_to() -> None:
    rows = [torch.randn(length, 32, device="cuda", dtype=torch.bfloat16) for length in (40, 24)]
    ragged: Any = torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True)

    def step() -> Tensor:
        heads = ragged.unflatten(-1, (2, 16)).transpose(1, 2)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            out: Tensor = F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).values()
        return out

    totals = counted(step)
    assert (totals.flops, totals.uncounted) == (6 * 2 * 2 * (40**2 + 24**2) * 16, {})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compiled", [False, True])
def test_flex_attention_costs_six_products_and_keeps_its_gradients(compiled: bool) -> None:
    torch._dynamo.reset()
    q, k, v = (torch.randn(2, 4, 128, 16, device="cuda", requires_grad=True) for _ in range(3))
    slope = torch.randn(4, device="cuda", requires_grad=True)
    attend: Any = torch.compile(flex_attention) if compiled else flex_attention

    def step() -> Tensor:
        out: Tensor = attend(q, k, v, score_mod=lambda s, b, h, i, j: s + slope[h] * (i - j))
        return out

    totals = counted(step)
    assert (totals.flops, totals.uncounted) == (6 * 2 * (2 * 4) * 128 * 128 * 16, {})
    assert slope.grad is not None
    seen, slope.grad = slope.grad, None
    step().sum().backward()
    torch.testing.assert_close(seen, slope.grad, rtol=1e-2, atol=1e-2)


def convolutions() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 7, 2, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=4)),
        *(nn.ConvTranspose2d(8, 4, 2, 2), nn.Flatten(), nn.LazyLinear(10)),
    )


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize("contexts", [(), (bf16,)], ids=["fp32", "bf16"])
def test_a_convolutional_net_costs_the_same_as_on_a_cpu(contexts: tuple[Any, ...]) -> None:
    model, x = convolutions(), torch.randn(2, 3, 32, 32)
    model(x)
    expected = counted(lambda: model(x)).flops
    # 16x16 by the stem, 14x14 by the groups, 28x28 by the transposed one.
    stem = 2 * 2 * 16 * 16 * 8 * 3 * 49
    rest = 2 * 2 * (14 * 14 * 8 * 2 * 9 + 14 * 14 * 8 * 4 * 4 + 28 * 28 * 4 * 10)
    assert expected == 2 * stem + 3 * rest
    assert counted(stepping(model.cuda(), x.cuda(), *contexts)).flops == expected


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("asked", [False, True])
def test_recurrent_layers_of_cudnn_cost_the_same_as_on_a_cpu(
    kind: type[nn.RNNBase], packed: bool, asked: bool
) -> None:
    layer = kind(5, 7, num_layers=2, bidirectional=True)
    sequences = [torch.randn(length, 5) for length in (6, 4, 4)]

    def flops(device: str) -> tuple[int, set[str]]:
        layer.to(device)
        inputs = [x.to(device).requires_grad_(asked) for x in sequences]

        def step() -> Tensor:
            if packed:
                out: Tensor = layer(nn.utils.rnn.pack_sequence(inputs))[0].data
            else:
                out = layer(nn.utils.rnn.pad_sequence(inputs))[0]
            return out

        totals = counted(step)
        assert totals.uncounted == {}
        return totals.flops, set(totals.by_operator)

    expected, _ = flops("cpu")
    seen, operators = flops("cuda")
    assert seen == expected
    assert operators == {"aten._cudnn_rnn", "aten._cudnn_rnn_backward"}


def test_a_projection_in_cudnn_costs_the_same_as_by_hand() -> None:
    layer = nn.LSTM(5, 7, proj_size=3).cuda()
    x, h, c = (torch.randn(s, device="cuda", requires_grad=True) for s in ((6, 2, 5), (1, 2, 3), (1, 2, 7)))
    assert counted(lambda: layer(x, (h, c))[0]).flops == 3 * 2 * 6 * 2 * (28 * (5 + 3) + 7 * 3)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_compiled_model_costs_the_same_and_stays_compiled(mode: str) -> None:
    torch._dynamo.reset()
    model, batch = GPT("sdpa", layers=1).cuda(), tokens().cuda()
    compiled = torch.compile(model, mode=mode)

    def step() -> None:
        model.zero_grad()  # gradients that live in a CUDA graph cannot be added to
        torch.compiler.cudagraph_mark_step_begin()
        compiled(batch).backward()

    for _ in range(3):
        step()
    totals = counted(step)
    assert (totals.flops, totals.recomputed_flops, totals.uncounted) == (gpt_flops(layers=1), 0, {})
    with torch.compiler.set_stance("fail_on_recompile"):
        step()


@pytest.mark.parametrize("kind", ["reentrant", "not reentrant"])
def test_recomputation_is_found_in_the_engines_threads(kind: str) -> None:
    model, batch = GPT("sdpa", checkpointed=kind).cuda(), tokens().cuda()
    with torch.utils.checkpoint.set_checkpoint_early_stop(False):
        totals = counted(lambda: model(batch))
    assert totals.flops == gpt_flops()
    assert totals.recomputed_flops == 48 * (2 * 2 * 12 * 32**2 + 4 * 2 * 32 * 16)


def test_a_graph_of_the_backward_is_not_recomputation() -> None:
    layer, x = nn.Linear(4, 5, bias=False).cuda(), torch.randn(3, 4, device="cuda", requires_grad=True)

    def step() -> None:
        (slope,) = torch.autograd.grad((layer(x) ** 2).sum(), x, create_graph=True)
        (slope**2).sum().backward()

    totals = counted(step)
    assert (totals.flops, totals.recomputed_flops) == (6 * 2 * 3 * 4 * 5, 0)


def test_a_replayed_graph_is_named() -> None:
    a, graph = torch.randn(32, 32, device="cuda"), torch.cuda.CUDAGraph()
    a @ a
    with torch.cuda.graph(graph):
        a @ a

    def step() -> None:
        graph.replay()

    assert counted(step).uncounted == {"cuda_graph.replay": 1}


def test_a_triton_kernel_is_named() -> None:
    triton = pytest.importorskip("triton")
    language = triton.language

    @triton.jit
    def doubled(into, size: language.constexpr):  # type: ignore[no-untyped-def]
        places = language.arange(0, size)
        language.store(into + places, 2 * language.load(into + places))

    x = torch.ones(64, device="cuda")
    assert counted(lambda: doubled[(1,)](x, 64) and None).uncounted == {"triton.doubled": 1}


def test_losses_and_gradients_are_the_same_bit_for_bit() -> None:
    def run(count: bool) -> list[Tensor]:
        torch.manual_seed(3)
        model, batch = GPT("sdpa").cuda(), tokens().cuda()
        seen = []

        def step() -> Tensor:
            loss: Tensor = F.dropout(model(batch).reshape(1), 0.5)
            seen.append(loss)
            return loss

        counted(step) if count else step().sum().backward()
        return [*seen, *(p.grad for p in model.parameters() if p.grad is not None)]

    with sdpa_kernel(SDPBackend.MATH):
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            assert all(torch.equal(a, b) for a, b in zip(run(True), run(False), strict=True))
        finally:
            torch.use_deterministic_algorithms(False)
