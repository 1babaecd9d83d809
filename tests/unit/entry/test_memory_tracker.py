"""What a loop leaves behind, as `flatout.MemoryTracker` tells it."""

import collections
import gc
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("whole_heap")

import flatout  # noqa: E402
from flatout.inside.retaining import left_behind, retention  # noqa: E402
from flatout.records.memory_growth import MemoryReport  # noqa: E402

STEPS = 200


@pytest.fixture(autouse=True)
def _time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """To search among all objects of a process that runs thousands of tests; none is let go in a loop."""
    gc.collect()
    monkeypatch.setattr(retention, "SECONDS", 60.0)
    monkeypatch.setattr(left_behind, "_GRAPHS_S", 60.0)


def line(mark: str) -> int:
    """Where a comment stands in this file."""
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, text in enumerate(lines, 1) if text.endswith(f"# {mark}"))


def track(
    body: Callable[[int, Any, Any], None], *, steps: int = STEPS, rows: Callable[[int], int] = lambda _: 64
) -> MemoryReport:
    """Train a small model, and let `body` do what it likes with outputs and losses."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
    optimizer = torch.optim.Adam(model.parameters())
    with flatout.MemoryTracker() as tracker:
        for number in range(steps):
            out = model(torch.randn(rows(number), 64))
            loss = out.square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            body(number, out, loss)
            tracker.step()
    return tracker.report()


def test_losses_that_are_kept_with_their_graphs() -> None:
    losses = []
    report = track(lambda _number, _out, loss: losses.append(loss))  # losses
    assert report.is_leak
    assert report.growth_bytes_per_step is not None
    assert 500 < report.growth_bytes_per_step < 50_000
    assert (report.steps, report.device, report.counted) == (STEPS, "cpu", "malloc")
    holder = report.holders[0]
    assert (holder.name, holder.keeps_graph, holder.tensors) == ("losses[...]", True, STEPS)
    assert holder.where is not None
    assert (holder.where.file, holder.where.line) == (__file__, line("losses"))
    words = str(report)
    assert "grows by" in words
    assert f"test_memory_tracker.py:{line('losses')}" in words
    assert ".item() or .detach()" in words


def test_the_slope_is_what_was_kept_and_lies_in_its_interval() -> None:
    kept: list[Any] = []
    report = track(lambda _number, out, _loss: kept.append(out.detach().repeat(16, 1)))
    assert report.is_leak
    low, high = report.growth_low_bytes_per_step, report.growth_high_bytes_per_step
    assert low is not None
    assert high is not None
    # Tensors have heads, beside their elements.
    assert 16 * 64 * 8 * 4 < low <= high < 16 * 64 * 8 * 4 * 1.1
    assert report.holders[0].name == "kept[...]"
    assert report.holders[0].growth_bytes_per_step == 16 * 64 * 8 * 4


def test_a_bounded_store_is_no_leak() -> None:
    recent: collections.deque[Any] = collections.deque(maxlen=16)
    report = track(lambda _number, out, _loss: recent.append(out.detach().repeat(16, 1)))
    assert report.is_leak is False
    assert report.holders == ()
    assert "no leak; a step leaves at most" in str(report)


@pytest.mark.full
def test_a_cache_that_stops_growing_is_no_leak() -> None:
    cache: dict[int, Any] = {}

    def body(number: int, out: Any, _loss: Any) -> None:
        if number < STEPS // 2:
            cache[number] = out.detach().repeat(16, 1)

    assert track(body).is_leak is False


def test_batches_of_many_sizes_are_no_leak() -> None:
    report = track(lambda *_: None, rows=lambda number: 16 + (number * 37) % 200)
    assert report.is_leak is False
    assert report.gradients == "none"


def test_what_is_written_out_now_and_then_is_no_leak() -> None:
    collected: list[Any] = []

    def body(number: int, out: Any, _loss: Any) -> None:
        collected.append(out.detach())
        if not number % 20:
            collected.clear()

    assert track(body).is_leak is False


def test_numbers_are_no_leak() -> None:
    losses: list[float] = []
    assert track(lambda _number, _out, loss: losses.append(loss.item())).is_leak is False


def test_gradients_that_are_never_zeroed() -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    engine = torch.autograd._engine_run_backward
    with flatout.MemoryTracker() as tracker:
        for _ in range(12):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            tracker.step()
        assert torch.autograd._engine_run_backward is engine  # known by now, so nobody watches any more
    report = tracker.report()
    assert report.gradients == "kept"
    assert "never zeroed" in str(report)


def test_few_steps_are_too_few_to_tell() -> None:
    report = track(lambda *_: None, steps=3)
    assert report.is_leak is None
    assert report.growth_bytes_per_step is None
    assert "too few" in report.unknown["growth_bytes_per_step"]
    assert "too few" in str(report)


def holding(tracked: Callable[[], MemoryReport]) -> MemoryReport:
    """A report with holders: what other tests left in this process may be let go meanwhile, not thrice."""
    reports = [tracked()]
    while not reports[-1].holders and len(reports) < 3:
        reports.append(tracked())
    assert reports[-1].holders, reports
    return reports[-1]


@pytest.mark.full
def test_without_a_block_and_before_the_end() -> None:
    def tracked() -> MemoryReport:
        tracker, kept = flatout.MemoryTracker(), []
        for _ in range(400):
            kept.append(torch.ones(1 << 14))  # in the loop
            tracker.step()
        return tracker.report()

    report = holding(tracked)
    assert report.holders[0].name == "kept[...]"
    assert report.holders[0].where is not None
    assert report.holders[0].where.line == line("in the loop")
    assert report.took_s < 3
    assert report.unknown["gradients"]


def test_the_holder_is_known_after_its_function_has_returned() -> None:
    def train() -> flatout.MemoryTracker:
        of_train = []
        with flatout.MemoryTracker() as tracker:
            for _ in range(400):
                of_train.append(torch.ones(1 << 14))
                tracker.step()
        return tracker

    assert holding(lambda: train().report()).holders[0].name == "of_train[...]"


@pytest.mark.full
def test_an_error_in_the_loop_passes_and_the_report_is_there() -> None:
    def tracked() -> MemoryReport:
        tracker, kept = flatout.MemoryTracker(), []

        def train() -> None:
            with tracker:
                for number in range(400):
                    kept.append(torch.ones(1 << 14))
                    tracker.step()
                    assert 1 / (399 - number)

        with pytest.raises(ZeroDivisionError):
            train()
        return tracker.report()

    assert holding(tracked).holders[0].name == "kept[...]"


def test_what_goes_wrong_inside_is_noted_and_reaches_nobody() -> None:
    with flatout.MemoryTracker(device="no such device") as tracker:
        for _ in range(20):
            tracker.step()
    report = tracker.report()
    assert report.steps == 20
    assert "no such device" in report.notes[0]


def test_a_step_costs_microseconds() -> None:
    tracker = flatout.MemoryTracker()
    tracker.step()
    costs = []
    for _ in range(20):
        began = time.thread_time()
        for _ in range(50):
            tracker.step()
        costs.append((time.thread_time() - began) / 50)
    # About two; a busy machine and a scattered heap take their share.
    assert statistics.median(costs) < 1e-4
