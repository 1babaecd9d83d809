"""Levers on a real GPU: fast kernels are really used, copies overlap, and numbers stay what they are."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset

import flatout
from flatout.levers.allocator import Allocator
from flatout.levers.attention import Attention
from flatout.levers.attention_kernels import time_kernels
from flatout.levers.bf16 import Bf16
from flatout.levers.compile import Compile
from flatout.levers.device_prefetch import DevicePrefetch
from flatout.levers.graph_outputs import GraphOutputs
from flatout.levers.lever import Broken
from flatout.levers.sdpa_backend import SdpaBackend

HEADS, WIDTH, LENGTH, BATCH = 8, 512, 512, 4


class Written(nn.Module):
    """Causal attention by hand."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mask", torch.tril(torch.ones(LENGTH, LENGTH)).view(1, 1, LENGTH, LENGTH))

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).split(width, dim=2)
        q, k, v = (one.view(batch, length, HEADS, -1).transpose(1, 2) for one in (q, k, v))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(self.mask[:, :, :length, :length] == 0, float("-inf"))
        weights = F.dropout(F.softmax(scores, dim=-1), self.dropout, self.training)
        y = (weights @ v).transpose(1, 2).contiguous().view(batch, length, width)
        return self.out(y)


class Stage:
    """What levers see, without a session."""

    def __init__(self, *on: Any, same_random: bool = False) -> None:
        self.torch, self.device, self.same_random = torch, torch.device("cuda", 0), same_random
        self.levers = [kind(self, settings) for kind, settings in on]

    def is_on(self, name: str) -> Any:
        return next((lever for lever in self.levers if lever.id == name), None)

    def call(self, root: Any) -> Any:
        call = root._call_impl
        for lever in sorted(self.levers, key=lambda one: one.layer):
            call = lever.around(root, call) if lever.layer else call
        return call


@pytest.fixture(autouse=True)
def from_nothing() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def trained(model: Any, call: Any, x: Any) -> tuple[Any, list[Any]]:
    model.zero_grad()
    torch.manual_seed(5)
    out = call(x)
    out.float().square().mean().backward()
    return out.detach().float(), [parameter.grad.clone() for parameter in model.parameters()]


def off(first: tuple[Any, list[Any]], second: tuple[Any, list[Any]]) -> float:
    pairs = [(first[0], second[0]), *zip(first[1], second[1], strict=True)]
    return max(float((a - b).norm() / (a.norm() + 1e-9)) for a, b in pairs)


def kernels(call: Any, x: Any) -> str:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call(x).float().sum().backward()
        torch.cuda.synchronize()
    return " ".join(event.key for event in profile.key_averages())


def test_attention_by_hand_becomes_a_fused_kernel() -> None:
    model, x = Written().cuda(), torch.randn(BATCH, LENGTH, WIDTH, device="cuda")
    call = Stage((Attention, {})).call(model)
    assert off(trained(model, model, x), trained(model, call, x)) < 1e-4
    assert "softmax" not in kernels(call, x)


def test_under_bf16_it_is_the_flash_kernel() -> None:
    model, x = Written().cuda(), torch.randn(BATCH, LENGTH, WIDTH, device="cuda")
    call = Stage((Attention, {}), (Bf16, {})).call(model)
    assert off(trained(model, model, x), trained(model, call, x)) < 0.03
    used = kernels(call, x)
    assert "flash" in used or "cudnn" in used


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_and_rewritten(mode: str) -> None:
    model, x = Written().cuda(), torch.randn(BATCH, LENGTH, WIDTH, device="cuda")
    call = Stage((Attention, {}), (Bf16, {}), (Compile, {"mode": mode})).call(model)
    for _ in range(4):  # graphs are recorded on the second call, and replayed from the third
        compiled = trained(model, call, x)
    assert off(trained(model, model, x), compiled) < 0.03
    model.zero_grad()
    assert "softmax" not in kernels(call, x)


@pytest.mark.parametrize("steps", [0, 1, 6])
def test_a_second_call_before_the_backward_pass_ends_graphs_and_nothing_is_lost(steps: int) -> None:
    model, x = Written().cuda(), torch.randn(BATCH, LENGTH, WIDTH, device="cuda")
    other = torch.randn_like(x)
    call = Stage((Compile, {"mode": "reduce-overhead"})).call(model)
    for _ in range(steps):
        trained(model, call, x)
    model.zero_grad()
    first = call(x)
    with pytest.raises(Broken, match="before the backward pass"):
        call(other)
    (first.square().mean() + model(other).square().mean()).backward()
    found = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    (model(x).square().mean() + model(other).square().mean()).backward()
    expected = [parameter.grad for parameter in model.parameters()]
    assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-6) for a, b in zip(found, expected, strict=True))


def test_graphs_that_were_dropped_give_their_memory_back() -> None:
    model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(8))).cuda()
    x = torch.randn(8192, 2048, device="cuda")
    stage = Stage((Compile, {"mode": "reduce-overhead"}))
    call = stage.call(model)
    for _ in range(5):
        trained(model, call, x)
    del call
    torch.cuda.empty_cache()
    held = torch.cuda.memory_reserved()
    stage.levers[0].let_go()
    torch.cuda.empty_cache()
    # Eight outputs of 64 MiB at least, which the backward pass needs.
    assert held - torch.cuda.memory_reserved() > 400 << 20
    assert off(trained(model, model, x), trained(model, model, x)) == 0.0


def test_outputs_of_graphs_are_lent_and_never_overwritten_while_kept() -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(512, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 4096)
    ).cuda()
    call = GraphOutputs(torch, torch.compile(model.forward, mode="reduce-overhead"))
    places, x = [], torch.randn(512, 512, device="cuda")
    for _ in range(10):
        model.zero_grad()
        out = call(x)
        loss = out.square().mean()
        loss.backward()
        places.append(out.data_ptr())
    assert not call.copies_all
    assert len(set(places[4:])) == 1  # not copies: each time the graph's own memory
    kept = [out]
    before = out.detach().clone()
    with pytest.raises(Broken):
        call(x)
    assert torch.equal(kept[0], before)


class WithItsLoss(torch.nn.Module):
    """Gives its logits beside the loss, whose backward pass needs them."""

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(256, 4096)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.head(x)
        return logits, torch.nn.functional.cross_entropy(logits, y)


def test_an_output_that_the_backward_pass_needs_may_be_held_by_the_script() -> None:
    torch.manual_seed(0)
    model = WithItsLoss().cuda()
    call = GraphOutputs(torch, torch.compile(model.forward, mode="reduce-overhead"))
    x, y = torch.randn(512, 256, device="cuda"), torch.randint(4096, (512,), device="cuda")
    plain = model(x, y)[1].item()
    for step in range(12):
        model.zero_grad()
        logits, loss = call(x, y)
        loss.backward()
        assert logits.shape == (512, 4096), step
        assert loss.item() == pytest.approx(plain, rel=1e-5)


def test_dropout_draws_as_written_in_guard_runs() -> None:
    model, x = Written(dropout=0.2).cuda(), torch.randn(BATCH, LENGTH, WIDTH, device="cuda")
    call = Stage((Attention, {}), same_random=True).call(model)
    call(x)
    assert off(trained(model, model, x), trained(model, call, x)) < 1e-3


@pytest.mark.parametrize(("first", "name"), [("cudnn", "cudnn"), ("flash", "flash")])
def test_the_attention_kernel_that_was_asked_for_is_used(first: str, name: str) -> None:
    q = torch.randn(BATCH, HEADS, LENGTH, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    lever = SdpaBackend(Stage(), {"first": first})  # type: ignore[arg-type]
    lever.apply()
    try:
        assert name in kernels(lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), q)
    finally:
        lever.undo()


def test_attention_kernels_are_timed_and_random_numbers_stay() -> None:
    torch.manual_seed(3)
    before = torch.cuda.get_rng_state()
    times = time_kernels(torch, torch.device("cuda"), (4, 12, 1024, 1024, 64), torch.bfloat16)
    assert {"torch's choice", "cudnn", "flash", "efficient"} <= set(times)
    assert all(0.01 < taken < 10 for taken in times.values())
    assert torch.equal(before, torch.cuda.get_rng_state())


def test_growing_segments_can_be_switched_in_a_running_process() -> None:
    lever = Allocator(Stage(), {})  # type: ignore[arg-type]
    lever.apply()
    large = torch.empty(64 << 20, device="cuda")
    large.fill_(1.0)
    lever.undo()
    assert float(large[-1]) == 1.0


# Batches ahead of time --------------------------------------------------------------------------------------


def data(samples: int = 64) -> TensorDataset:
    torch.manual_seed(1)
    return TensorDataset(torch.randn(samples, 3, 128, 128), torch.arange(samples))


def test_prefetched_batches_are_what_the_loader_yields_bit_for_bit() -> None:
    """Memory is given back and taken again all the time: a missing wait or record_stream would show."""
    loader = DataLoader(data(), batch_size=8, num_workers=2, pin_memory=True, persistent_workers=True)
    weight = torch.randn(128, 128, device="cuda")
    for _epoch in range(5):
        expected = [x.cuda().sum().item() for x, _ in loader]
        got = []
        for x, y in flatout.prefetch(loader, "cuda"):
            assert x.is_cuda
            assert y.is_cuda
            got.append(x.sum())
            other = x
            for _ in range(20):
                other = torch.tanh(other @ weight)
            del other
        assert [value.item() for value in got] == expected


def test_copies_run_while_the_device_computes() -> None:
    """On a stream of their own, and at the same time as kernels of the other."""
    loader = DataLoader(data(96), batch_size=16, num_workers=2, pin_memory=True, persistent_workers=True)
    weight = torch.randn(4096, 4096, device="cuda")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(3):
            for _x, _y in flatout.prefetch(loader, "cuda"):
                y = weight
                for _ in range(30):
                    y = y @ weight * 1e-3
        torch.cuda.synchronize()
    spans: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for event in profile.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            spans["Memcpy HtoD" in event.name].append((event.time_range.start, event.time_range.end))
    overlapping = sum(
        any(start < end_k and start_k < end for start_k, end_k in spans[False]) for start, end in spans[True]
    )
    assert len(spans[True]) >= 18
    assert overlapping >= len(spans[True]) // 2


def test_the_lever_moves_what_the_loop_would_have_copied() -> None:
    model = nn.Linear(4, 2).cuda()
    scene: Any = SimpleNamespace(
        torch=torch, device=torch.device("cuda", 0), roots=lambda: [model], infers=False
    )
    lever = DevicePrefetch(scene, {"_leaves": ["0"], "_data_set": ""})
    loader = DataLoader(data(), batch_size=8, num_workers=2, pin_memory=True)
    plain = [(x.clone(), y.clone()) for x, y in loader]
    seen = []
    lever.apply()
    for number, (x, y) in enumerate(loader):
        assert y.device.type == "cpu"
        seen.append((x.cpu(), y))
        if number == 4:
            lever.undo()
    assert all(torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in zip(plain, seen, strict=True))
