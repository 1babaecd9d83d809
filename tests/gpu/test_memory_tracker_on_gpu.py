"""What steps leave behind on a real GPU, to the byte; who holds it, and which line asked for it."""

import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import flatout  # noqa: E402

# The smallest that torch's allocator hands out.
BLOCK = 512


def line(mark: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, text in enumerate(lines, 1) if text.endswith(f"# {mark}"))


def steps(number: int) -> Iterator[tuple[int, Any, Any]]:
    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 8)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for place in range(number):
        out = model(torch.randn(32 + place % 7, 256, device="cuda"))
        loss = out.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield place, out, loss


def test_a_list_of_losses_grows_by_a_block_a_step() -> None:
    losses = []
    with flatout.MemoryTracker() as tracker:
        for _, _, loss in steps(300):
            losses.append(loss)  # losses
            tracker.step()
    report = tracker.report()
    assert (report.device, report.counted, report.is_leak) == ("cuda:0", "allocated", True)
    assert report.growth_bytes_per_step == BLOCK
    holder = report.holders[0]
    assert (holder.name, holder.tensors, holder.keeps_graph) == ("losses[...]", 300, True)
    assert holder.where is not None
    assert holder.where.line == line("losses")
    assert report.reserved_bytes
    assert report.fragmented_share is not None
    assert 0 <= report.fragmented_share < 1
    assert report.largest_free_bytes is not None


def test_a_healthy_loop_is_no_leak() -> None:
    with flatout.MemoryTracker() as tracker:
        for _ in steps(300):
            tracker.step()
    report = tracker.report()
    assert report.is_leak is False
    assert report.gradients == "none"


def test_the_line_that_asked_for_the_memory_is_known_where_a_history_is_kept() -> None:
    kept = []
    torch.cuda.memory._record_memory_history("state", context="alloc", stacks="python")
    try:
        with flatout.MemoryTracker() as tracker:
            for _ in range(40):
                kept.append(torch.ones(1 << 16, device="cuda"))  # asked
                tracker.step()
        report = tracker.report()
    finally:
        torch.cuda.memory._record_memory_history(None)
    assert f"{Path(__file__).name}:{line('asked')}" in report.holders[0].made_at


def test_a_step_costs_microseconds() -> None:
    torch.ones(1, device="cuda")
    tracker = flatout.MemoryTracker()
    tracker.step()
    costs = []
    for _ in range(20):
        began = time.perf_counter()
        for _ in range(40):
            tracker.step()
        costs.append((time.perf_counter() - began) / 40)
    assert statistics.median(costs) < 2e-4
