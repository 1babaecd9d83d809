"""`flatout.optimize`: what helps is kept, what harms is a verdict, and the module stays what it was.

Modules here sleep unless they run one certain way: which is faster is no question of luck.
"""

import contextlib
import copy
import importlib.util
import pickle
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import flatout
from flatout.infer.optimizing import search
from flatout.infer.optimizing.calling import arguments
from flatout.infer.optimizing.optimize import make_optimized
from flatout.infer.optimizing.optimized import Optimized
from flatout.infer.optimizing.switches import switched
from flatout.infer.optimizing.ways import Way
from flatout.infer.optimizing.weights import twin
from flatout.records.errors import CallerMistake, UnknownName
from flatout.records.inference import TriedWay

SLOW_S = 0.01
CPU = torch.device("cpu")


class Moody(nn.Module):
    """Slow as written; under autocast it does what it is told."""

    def __init__(self, under_autocast: str = "fast") -> None:
        super().__init__()
        self.layer, self.drop = nn.Linear(8, 5), nn.Dropout(0.5)
        self.under_autocast = under_autocast

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.is_autocast_enabled("cpu"):
            time.sleep(SLOW_S)
            return self.drop(self.layer(x))
        if self.under_autocast == "raises":
            raise RuntimeError("not with me\nsecond line")
        if self.under_autocast == "runs out":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        while self.under_autocast == "hangs":
            time.sleep(0.01)
        factor = {"fast": 1.0, "wrong": 1.3, "not finite": float("nan")}[self.under_autocast]
        return self.layer(x) * factor


class Casted(nn.Module):
    """Slow with weights in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.layer.weight.dtype == torch.float32:
            time.sleep(SLOW_S)
        return self.layer(x)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Threads that wait for each other on a busy machine take longer than any sleep."""
    found = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(found)


def optimized(module: nn.Module, example: Any, budget_s: float = 20.0, **settings: Any) -> Optimized:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make_optimized(
            module,
            example,
            "latency",
            allow=(),
            budget_s=budget_s,
            buckets=None,
            backend="eager",
            **settings,
        )


def tried(made: Optimized, lever: str) -> TriedWay:
    return next(one for one in made.report.tried if one.lever == lever)


@pytest.fixture(scope="module")
def made() -> Optimized:
    torch.manual_seed(0)
    return optimized(Moody(), torch.randn(6, 8))


def test_what_helps_is_kept_with_figures(made: Optimized) -> None:
    kept = tried(made, "bf16-autocast")
    assert kept.verdict == "kept"
    assert "bf16-autocast" in made.report.chosen
    assert kept.low is not None
    assert kept.low > 1
    assert kept.error is not None
    assert kept.allowed_error is not None
    assert 0 < kept.error <= kept.allowed_error
    assert made.report.speedup > 1
    assert made.report.baseline_ms > made.report.best_ms
    assert "bf16-autocast" in str(made.report)
    assert "bf16-autocast" in repr(made)


def test_it_is_called_like_the_module_and_answers_in_its_dtype(made: Optimized) -> None:
    x = torch.randn(6, 8)
    answer = made(x)
    assert answer.dtype == torch.float32
    torch.testing.assert_close(answer, made.module(x).detach(), atol=0.05, rtol=0.05)
    assert not answer.requires_grad
    with pytest.raises(RuntimeError, match="shapes"):
        made(torch.randn(6, 9))


def test_every_other_name_is_the_modules_own(made: Optimized) -> None:
    assert made.layer is made.module.layer
    assert made.state_dict().keys() == made.module.state_dict().keys()
    assert made.layer.weight.dtype == torch.float32
    with pytest.raises(AttributeError):
        _ = made.nothing_like_it


@pytest.mark.parametrize(
    ("mood", "verdict", "words"),
    [
        ("wrong", "unsafe", "rounding explains"),
        ("not finite", "unsafe", "not finite"),
        ("raises", "failed", "RuntimeError: not with me"),
        ("runs out", "failed", "out of memory"),
    ],
)
def test_what_harms_is_a_verdict(mood: str, verdict: str, words: str) -> None:
    torch.manual_seed(0)
    made = optimized(Moody(mood), torch.randn(6, 8), budget_s=14.0)
    found = tried(made, "bf16-autocast")
    assert found.verdict == verdict
    assert words in found.reason
    assert "\n" not in found.reason
    assert "bf16-autocast" not in made.report.chosen
    assert made(torch.randn(6, 8)).isfinite().all()


def test_what_hangs_is_left_behind_and_the_search_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = search.Search._trial

    def hurried(self: search.Search, way: Way, lever: str, left_s: float) -> None:
        """Only what hangs has little time: on a busy machine the others may need more."""
        monkeypatch.setattr(search, "_TRIAL_S", 2.0 if lever == "bf16-autocast" else 60.0)
        trial(self, way, lever, left_s)

    monkeypatch.setattr(search.Search, "_trial", hurried)
    made = optimized(Moody("hangs"), torch.randn(6, 8))
    assert tried(made, "bf16-autocast").verdict == "failed"
    assert "no answer within 2 s" in tried(made, "bf16-autocast").reason
    assert tried(made, "bf16-weights").verdict in ("kept", "refused")


def test_what_there_is_no_time_for_is_skipped_with_a_word() -> None:
    made = optimized(Moody(), torch.randn(6, 8), budget_s=0.5)
    assert {one.verdict for one in made.report.tried} == {"skipped"}
    assert all("left of the time" in one.reason for one in made.report.tried)
    assert made.report.chosen == ()


def test_training_mode_is_left_with_a_word_and_put_back() -> None:
    module = Moody()
    module.layer.eval()
    with pytest.warns(UserWarning, match="training mode"):
        made = flatout.optimize(module, torch.randn(6, 8), "throughput", budget_s=0.5)
    with made:
        assert not module.training
        assert any("eval()" in note for note in made.report.notes)
        module.train()
        made(torch.randn(6, 8))
        module.eval()
    assert module.training
    assert module.drop.training
    assert not module.layer.training
    x = torch.randn(6, 8)
    module.eval()
    assert torch.equal(made(x), module(x)), "after close, calls go to the module"


def test_a_copy_with_other_weights_follows_what_the_module_loads() -> None:
    torch.manual_seed(0)
    module = Casted().eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    made = optimized(module, torch.randn(6, 8))
    assert "bf16-weights" in made.report.chosen
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    other = Casted().eval()
    x = torch.randn(6, 8)
    module.load_state_dict(other.state_dict())
    torch.testing.assert_close(made(x), other(x).detach(), atol=0.05, rtol=0.05)
    torch.manual_seed(2)
    again = nn.Linear(8, 5)
    module.layer.load_state_dict(again.state_dict())
    torch.testing.assert_close(made(x), again(x).detach(), atol=0.05, rtol=0.05)
    for apart in (copy.deepcopy(module), pickle.loads(pickle.dumps(module, protocol=2))):
        apart.load_state_dict(other.state_dict())
        assert torch.equal(apart(x), other(x))
    torch.testing.assert_close(made(x), again(x).detach(), atol=0.05, rtol=0.05)
    made.close()
    assert not any(part._load_state_dict_post_hooks for part in module.modules())


def test_a_module_that_was_cast_or_rebuilt_runs_as_written() -> None:
    module, x = Casted().eval(), torch.randn(6, 8)
    made = optimized(module, x)
    module.double()
    with pytest.warns(UserWarning, match="cast, moved or rebuilt"):
        assert made(x.double()).dtype == torch.float64
    module = Casted().eval()
    made = optimized(module, x)
    assert "bf16-weights" in made.report.chosen
    module.layer = nn.Linear(8, 3)
    module.load_state_dict(module.state_dict())
    with pytest.warns(UserWarning, match="weights were loaded that its copy in another precision"):
        assert made(x).shape == (6, 3)
    assert made(x).shape == (6, 3)


def test_a_call_that_fails_the_fast_way_runs_as_written() -> None:
    class Small(Casted):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.layer.weight.dtype != torch.float32 and float(x.abs().max()) > 100:
                raise RuntimeError("too large for me")
            return super().forward(x)

    torch.manual_seed(0)
    module = Small().eval()
    made = optimized(module, torch.randn(6, 8))
    assert "bf16-weights" in made.report.chosen
    x = torch.full((6, 8), 1000.0)
    with pytest.warns(UserWarning, match="too large for me"):
        answer = made(x)
    assert torch.equal(answer, module(x))
    assert made.counts["failed"] == 1


def test_a_lever_whose_package_is_missing_is_a_verdict_that_names_it() -> None:
    if importlib.util.find_spec("torchao") is not None:
        pytest.skip("torchao is installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = flatout.optimize(Casted(), torch.randn(6, 8), allow=("int8-weights",), budget_s=14)
    assert tried(made, "int8-weights").verdict == "failed"
    assert "torchao is not installed" in tried(made, "int8-weights").reason


def test_a_data_set_goes_through_it(made: Optimized, tmp_path: Path) -> None:
    data = torch.randn(13, 8)
    done = flatout.batch_inference(made, data, out=tmp_path / "out", batch_size=6)
    torch.testing.assert_close(done.output(), made.module(data).detach(), atol=0.05, rtol=0.05)


def test_mistakes_are_answered() -> None:
    with pytest.raises(UnknownName, match="int8-weights"):
        flatout.optimize(nn.Linear(2, 2), torch.randn(1, 2), allow=("int8",))
    with pytest.raises(UnknownName, match="latency"):
        flatout.optimize(nn.Linear(2, 2), torch.randn(1, 2), "speed")  # type: ignore[arg-type]
    with pytest.raises(CallerMistake, match="without a tensor"):
        flatout.optimize(nn.Linear(2, 2), ())
    with pytest.raises(CallerMistake, match="no module"):
        flatout.optimize(len, torch.randn(1, 2))
    with pytest.raises(CallerMistake, match="budget_s"):
        flatout.optimize(nn.Linear(2, 2), torch.randn(1, 2), budget_s=0)


def test_switches_of_the_process_are_back_when_the_last_user_leaves() -> None:
    cudnn = torch.backends.cudnn
    before = (cudnn.benchmark, torch.backends.cuda.matmul.fp32_precision)
    way = Way(precision="tf32", cudnn_autotune=True)
    first, second = switched(way), switched(way)
    first.__enter__()
    second.__enter__()
    assert torch.backends.cuda.matmul.allow_tf32
    first.__exit__(None, None, None)
    assert cudnn.benchmark, "the other one still wants it"
    second.__exit__(None, None, None)
    assert (cudnn.benchmark, torch.backends.cuda.matmul.fp32_precision) == before


def test_the_order_of_attention_kernels_is_back_when_the_last_user_leaves() -> None:
    order = torch._C._get_sdp_priority_order
    before = order()
    first, second = switched(Way(attention="cudnn")), switched(Way(attention="cudnn"))
    first.__enter__()
    turned = order()
    second.__enter__()
    first.__exit__(None, None, None)
    assert order() == turned != before, "the other one still wants it"
    second.__exit__(None, None, None)
    assert order() == before


def test_weights_that_a_copy_shares_stay_trainable() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    other = twin(module, Way(channels_last=True))
    assert all(one.requires_grad for one in module.parameters())
    assert other[1].weight is module[1].weight
    assert not other[0].weight.requires_grad


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.timeout(300)
def test_with_inductor_a_compiled_module_answers_all_batches() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 10)).eval()
    made = flatout.optimize(module, torch.randn(8, 32), budget_s=110)
    compiled = tried(made, "compile")
    assert compiled.verdict in ("kept", "refused"), compiled.reason
    assert compiled.error is not None
    for samples in (8, 1, 3, 11):
        x = torch.randn(samples, 32)
        torch.testing.assert_close(made(x), module(x).detach(), atol=0.05, rtol=0.05)


class Remembers(nn.Module):
    """Each call moves a mean."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.register_buffer("mean", torch.zeros(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.mul_(0.9).add_(0.1 * x.mean(0))
        return self.layer(x) + self.mean


def test_a_module_that_remembers_is_left_as_it_was_found_and_runs_as_written() -> None:
    torch.manual_seed(0)
    module, twin = Remembers().eval(), Remembers().eval()
    twin.load_state_dict(module.state_dict())
    made = make_optimized(
        module, torch.randn(8, 16), "latency", allow=(), budget_s=3, buckets=None, backend="eager"
    )
    assert torch.equal(module.mean, torch.zeros(16))
    assert "mean" in made.report.notes[-1]
    for number in range(3):
        x = torch.full((8, 16), float(number))
        with torch.no_grad():
            assert torch.equal(made(x), twin(x))


def test_inputs_beside_the_gpu_are_not_captured() -> None:
    from flatout.infer.optimizing.captured import Captured

    with pytest.raises(ValueError, match="inputs on cpu"):
        Captured(lambda x: x, arguments(torch.ones(2)), torch.device("cuda", 0), None)


class Graph:
    """A graph that computes nothing when it is run: outputs are those of the capture."""

    def replay(self) -> None:
        """Nothing changes."""


class Marker:
    """An event, or a stream, which remembers what it is asked for."""

    def __init__(self, *_: Any) -> None:
        self.heard: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda what=None: self.heard.append((name, what))


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A stand-in for CUDA, whose device is the CPU; the last one is the current stream."""
    found: list[Any] = [Marker()]
    nothing = lambda *_, **__: contextlib.nullcontext()  # noqa: E731
    fakes = {"CUDAGraph": Graph, "Event": Marker, "Stream": Marker, "device": nothing, "stream": nothing}
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: found[-1])
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    monkeypatch.setattr(torch.cuda, "synchronize", nothing)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr("flatout.infer.optimizing.captured.capturing", nothing)
    return found


def test_graphs_of_one_pool_wait_for_each_other(streams: list[Any]) -> None:
    from flatout.infer.optimizing.preparing import Prepared

    prepared = Prepared(nn.Identity(), Way(cuda_graph=True), torch.device("cpu"))
    small, large = (prepared.captured(nn.Identity(), arguments(torch.ones(size))) for size in (2, 4))
    other = prepared.captured_too(prepared.way).captured(nn.Identity(), arguments(torch.ones(2)))
    small(torch.ones(2))
    first = streams[-1]
    streams.append(Marker())
    large(torch.ones(4))
    waited = [what for name, what in streams[-1].heard if name == "wait_event"]
    assert [name for event in waited for name, stream in event.heard if stream is first] == ["record"]
    streams[-1].heard.clear()
    other(torch.ones(2))
    assert streams[-1].heard == [], "a pool of its own"


def test_a_graph_captured_in_inference_mode_takes_calls_outside_of_it(streams: list[Any]) -> None:
    from flatout.infer.optimizing.captured import Captured, Pool

    with torch.inference_mode():
        run = Captured(nn.Identity(), arguments(torch.ones(2)), CPU, Pool(CPU))
    assert torch.equal(run(torch.full((2,), 3.0)), torch.full((2,), 3.0))
    assert streams


@pytest.mark.usefixtures("streams")
def test_what_hides_tensors_is_not_captured() -> None:
    from flatout.infer.optimizing.captured import Captured, Pool

    with pytest.raises(ValueError, match="holds a Marker"):
        Captured(lambda _x: [Marker()], arguments(torch.ones(2)), CPU, Pool(CPU))


def test_a_device_is_timed_by_its_own_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    from flatout.infer.optimizing import optimize

    asked: list[torch.device] = []
    monkeypatch.setattr(
        optimize, "on_device", lambda device: asked.append(device) or contextlib.nullcontext()
    )
    optimized(nn.Identity(), torch.randn(2, 2), budget_s=0.5)
    assert asked == [torch.device("cpu")]


@pytest.mark.parametrize("channels_last", [False, True])
def test_weights_that_lie_elsewhere_than_when_they_were_captured_end_the_fast_way(
    channels_last: bool,
) -> None:
    from flatout.infer.optimizing.preparing import Prepared
    from flatout.infer.optimizing.search import Candidate

    module = nn.Linear(4, 4).eval()
    graph = nn.Linear(4, 4)  # stands for a graph over the weights that were
    way = Way(cuda_graph=True, channels_last=channels_last)
    candidate = Candidate(way, Prepared(module, Way(), torch.device("cpu")), graph)
    made = Optimized(module, None, candidate, None, {})  # type: ignore[arg-type]
    x = torch.ones(1, 4)
    assert torch.equal(made(x), graph(x))
    module.double().float()
    with pytest.warns(UserWarning, match="lie elsewhere"):
        assert torch.equal(made(x), module(x))
