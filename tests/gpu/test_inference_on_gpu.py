"""Inference on a real GPU: graphs for all threads and streams, precision under guard, memory that ends."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import flatout
from flatout.infer.optimizing.calling import arguments
from flatout.infer.optimizing.captured import Captured, Pool
from flatout.infer.optimizing.guard import Guard
from flatout.infer.optimizing.optimize import make_optimized
from flatout.infer.optimizing.preparing import Prepared
from flatout.infer.optimizing.ways import Way

DEVICE = torch.device("cuda", 0)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(256, 8, 512, batch_first=True)
    return (
        nn.Sequential(nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), nn.Linear(256, 100))
        .to(DEVICE)
        .eval()
    )


def images() -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, padding=1)]
    for _ in range(4):
        layers += [nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).to(DEVICE).eval()


@torch.no_grad()
def test_a_captured_call_answers_every_time_and_its_outputs_last(model: nn.Module) -> None:
    run = Captured(model, arguments(torch.randn(4, 16, 256, device=DEVICE)), DEVICE, Pool(DEVICE))
    inputs = [torch.randn(4, 16, 256, device=DEVICE) for _ in range(5)]
    answers = [run(x) for x in inputs]
    for x, answer in zip(inputs, answers, strict=True):
        torch.testing.assert_close(answer, model(x), atol=1e-3, rtol=1e-3)


@torch.no_grad()
def test_threads_and_streams_share_a_graph(model: nn.Module) -> None:
    run = Captured(model, arguments(torch.randn(4, 16, 256, device=DEVICE)), DEVICE, Pool(DEVICE))
    wrong: list[float] = []

    @torch.no_grad()
    def work(seed: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream(DEVICE)):
            generator = torch.Generator(DEVICE).manual_seed(seed)
            for _ in range(30):
                x = torch.randn(4, 16, 256, device=DEVICE, generator=generator)
                answer = run(x)
                torch.cuda.current_stream(DEVICE).synchronize()
                apart = float((answer - model(x)).abs().max())
                if apart > 1e-2:
                    wrong.append(apart)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize(
    "way",
    [
        Way(precision="tf32"),
        Way(precision="bf16-autocast"),
        Way(precision="bf16-weights", channels_last=True, cuda_graph=True),
        Way(precision="fp16-weights", cudnn_autotune=True),
    ],
)
def test_honest_ways_pass_the_guard_and_put_switches_back(way: Way) -> None:
    module = images()
    example = arguments(torch.randn(8, 3, 32, 32, device=DEVICE))
    before = (torch.backends.cudnn.benchmark, torch.backends.cuda.matmul.allow_tf32)
    prepared = Prepared(module, way, DEVICE)
    judged = Guard(module, [example], torch.float32).judge(prepared.for_example(example), way)
    assert judged.refusal == ""
    assert (torch.backends.cudnn.benchmark, torch.backends.cuda.matmul.allow_tf32) == before


def test_optimize_compiles_captures_and_answers_all_batches(model: nn.Module) -> None:
    made = flatout.optimize(model, torch.randn(8, 16, 256, device=DEVICE), budget_s=60)
    assert made.report.speedup > 1.0
    assert "cuda-graph" in made.report.chosen, made.report
    assert not [one for one in made.report.tried if one.verdict == "failed" and "attention" not in one.lever]
    with torch.no_grad():
        for samples in (8, 1, 3, 5, 8, 20):
            x = torch.randn(samples, 16, 256, device=DEVICE)
            torch.testing.assert_close(made(x), model(x), atol=0.1, rtol=0.1)
    assert made.counts["failed"] == 0
    other: list[Any] = []
    thread = threading.Thread(target=lambda: other.append(made(torch.randn(8, 16, 256, device=DEVICE))))
    thread.start()
    thread.join()
    assert other[0].shape == (8, 16, 100)
    assert made.counts["failed"] == 0, "another thread may call it"


def test_a_module_that_waits_for_the_device_is_not_captured() -> None:
    class Waits(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * float(x.sum() > -1e9)

    module = Waits(64, 64).to(DEVICE).eval()
    made = make_optimized(
        module,
        torch.randn(4, 64, device=DEVICE),
        "latency",
        allow=(),
        budget_s=10,
        buckets=None,
        backend="eager",
    )
    verdicts = {one.lever: one for one in made.report.tried}
    assert verdicts["cuda-graph"].verdict == "failed"
    # A capture that broke off leaves nothing behind.
    torch.cuda.empty_cache()
    x = torch.randn(4, 64, device=DEVICE)
    torch.testing.assert_close(made(x), module(x), atol=0.1, rtol=0.1)
    torch.cuda.synchronize()


def test_after_a_failed_capture_numbers_go_on_and_the_next_one_works(model: nn.Module) -> None:
    x, pool = torch.randn(4, 16, 256, device=DEVICE), Pool(DEVICE)

    class Waits(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(torch.rand_like(x)) * float(x.sum())

    torch.manual_seed(1)
    stream = torch.cuda.current_stream()
    with pytest.raises(RuntimeError):
        Captured(Waits(256, 8).to(DEVICE), arguments(x), DEVICE, pool)
    assert torch.cuda.current_stream() == stream
    torch.cuda.empty_cache()
    assert torch.rand(8, device=DEVICE).unique().numel() == 8
    run = Captured(model, arguments(x), DEVICE, Pool(DEVICE))
    with torch.no_grad():
        torch.testing.assert_close(run(x), model(x), atol=1e-3, rtol=1e-3)


@torch.no_grad()
def test_others_may_give_workspaces_back_and_the_graph_keeps_to_its_own_memory() -> None:
    """Each recording of torch.compile does so; what was the workspace then belongs to whoever asks next."""
    torch.manual_seed(0)
    # Narrow and deep: the product is split, and its parts meet in the workspace.
    wide = nn.Linear(65536, 64, device=DEVICE, dtype=torch.bfloat16)
    x = torch.randn(64, 65536, device=DEVICE, dtype=torch.bfloat16)
    wanted = wide(x)
    run = Captured(wide, arguments(x), DEVICE, Pool(DEVICE))
    torch._C._cuda_clearCublasWorkspaces()
    taken = [torch.zeros(1 << 20, device=DEVICE) for _ in range(64)]
    for _ in range(3):
        torch.testing.assert_close(run(x), wanted, atol=0.05, rtol=0.05)
    assert not any(one.any() for one in taken)
    del taken
    torch.cuda.empty_cache()
    torch.testing.assert_close(run(x), wanted, atol=0.05, rtol=0.05)
    torch.cuda.synchronize()


def test_a_data_set_that_does_not_fit_at_once_is_split(tmp_path: Path) -> None:
    free, _ = torch.cuda.mem_get_info(DEVICE)
    # Of what is free, a sample takes a fifth: eight run out, four do not.
    wide = int(free / 5 / 4)

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1, device=DEVICE))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            room = torch.ones(x.shape[0], wide, device=x.device)
            return x * self.scale + room[:, :1]

    data = torch.arange(40.0).view(20, 2)
    done = flatout.batch_inference(Wide(), data, out=tmp_path / "out", batch_size=8, workers=2)
    assert torch.equal(done.output(), data + 1)
    assert done.part_size is not None
    assert done.part_size <= 4


def test_a_data_set_through_streams_has_the_right_outputs(model: nn.Module, tmp_path: Path) -> None:
    data = torch.randn(300, 16, 256)
    done = flatout.batch_inference(model, data, out=tmp_path / "out", workers=2, shard_samples=64)
    with torch.no_grad():
        wanted = torch.cat([model(part.to(DEVICE)).cpu() for part in data.split(done.batch_size)])
    torch.testing.assert_close(done.output(), wanted, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("precision", ["int8-weights", "fp8-weights"])
def test_quantized_weights_are_tried_where_they_are_allowed(model: nn.Module, precision: str) -> None:
    pytest.importorskip("torchao")
    made = make_optimized(
        model,
        torch.randn(4, 16, 256, device=DEVICE),
        "latency",
        allow=(precision,),
        budget_s=40,
        buckets=None,
        backend="eager",
    )
    found = next(one for one in made.report.tried if one.lever == precision)
    assert found.verdict in ("kept", "refused"), found.reason
