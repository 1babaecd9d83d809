"""Which ways a search tries on a GPU, and which it keeps.

The GPU is made up: graphs are plain calls, and how long a way takes stands in a table.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from flatout.infer.optimizing import facts, optimize, preparing, search
from flatout.infer.optimizing.deadline import TooLong
from flatout.infer.optimizing.racing import Raced
from flatout.infer.optimizing.ways import Way
from flatout.records.inference import OptimizeReport

PRECISIONS = ("tf32", "bf16-autocast", "bf16-weights")


@dataclasses.dataclass
class Table:
    """How much of the time as written each lever leaves, alone; and what else happens."""

    shares: Callable[[Way], float] = lambda _: 1.0
    has_images: bool = False
    capture_fails: Callable[[Way], bool] = lambda _: False
    compiles_too_long: Callable[[Way], bool] = lambda _: False

    def ms(self, way: Way) -> float:
        lower = way.precision.startswith("bf16")
        parts = (
            0.6 if way.cuda_graph else 1.0,
            0.4 if lower else 0.8 if way.precision == "tf32" else 1.0,
            0.7 if way.compile else 1.0,
            0.9 if way.compile == "max-autotune" else 1.0,
            self.shares(way),
        )
        took = 10.0
        for part in parts:
            took *= part
        return took


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnGpu(facts.Facts):
    @property
    def on_gpu(self) -> bool:
        return True


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    def run(table: Table, budget_s: float = 300.0) -> OptimizeReport:
        def found(*args: Any) -> facts.Facts:
            known = vars(facts.facts_of(*args))
            changed = {"precisions": PRECISIONS, "has_images": table.has_images, "has_attention": False}
            return OnGpu(**{**known, **changed})

        def captured(self: preparing.Prepared, call: Any, _example: Any) -> Any:
            if self.way.cuda_graph and table.capture_fails(self.way):
                raise RuntimeError("operation not permitted when stream is capturing")
            return call

        def compared(_: search.Search, first: search.Candidate, second: search.Candidate) -> Raced:
            before, after = table.ms(first.way), table.ms(second.way)
            return Raced(before, after, before / after, 0.999 * before / after, 1.001 * before / after)

        ready = search.Search._ready

        def hurried(self: search.Search, way: Way) -> Any:
            if table.compiles_too_long(way):
                raise TooLong(10, is_gone=True)
            return ready(self, way)

        monkeypatch.setattr(optimize, "facts_of", found)
        monkeypatch.setattr(preparing.Prepared, "captured", captured)
        monkeypatch.setattr(search.Search, "compared", compared)
        monkeypatch.setattr(search.Search, "_ready", hurried)
        monkeypatch.setattr(search.Search, "_tidy", lambda _: None)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "made up")
        module = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16)).eval()
        made = optimize.make_optimized(
            module, torch.randn(4, 16), "latency", allow=(), budget_s=budget_s, buckets=None, backend="eager"
        )
        made.close()
        return made.report

    yield run
    torch.compiler.reset()


def test_all_that_helps_is_found_together(searched: Any) -> None:
    assert set(searched(Table()).chosen) >= {"cuda-graph", "bf16-autocast", "compile:max-autotune"}


def test_a_precision_whose_eager_capture_fails_is_tried_with_the_compiler(searched: Any) -> None:
    def fails(way: Way) -> bool:
        return way.precision.startswith("bf16") and not way.compile

    report = searched(Table(capture_fails=fails))
    assert {"bf16-weights", "cuda-graph"} <= set(report.chosen)
    assert report.tried[-1].lever == "compile:max-autotune"


def test_what_cannot_be_captured_is_compiled_without_a_graph(searched: Any) -> None:
    fused = Table(lambda way: 0.5 if way.compile else 1.0, capture_fails=lambda way: bool(way.compile))
    report = searched(fused)
    assert "compile:max-autotune" in report.chosen
    assert "cuda-graph" not in report.chosen
    assert "compile, without a graph" in {one.lever for one in report.tried}


@pytest.mark.parametrize(("eager", "compiled"), [(1.05, 0.9), (0.9, 1.05)])
def test_the_compiler_is_tried_with_either_layout_of_images(
    searched: Any, eager: float, compiled: float
) -> None:
    def shares(way: Way) -> float:
        return (compiled if way.compile else eager) if way.channels_last else 1.0

    report = searched(Table(shares=shares, has_images=True))
    assert ("channels-last" in report.chosen) == (compiled < 1)
    assert "compile:max-autotune" in report.chosen


def test_what_there_was_no_time_for_is_left_out_and_not_called_a_failure(searched: Any) -> None:
    report = searched(Table(compiles_too_long=lambda way: way.compile == "max-autotune"))
    last = report.tried[-1]
    assert (last.lever, last.verdict) == ("compile:max-autotune", "skipped")
    assert "no answer within 10 s" in last.reason
    assert "compile" in report.chosen
