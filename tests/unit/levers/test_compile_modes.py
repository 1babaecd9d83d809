"""Modes of the compiler: which are tried, what autotuning adds, and how each reaches torch."""

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from flatout.levers import compile as compile_lever  # noqa: E402
from flatout.levers.compile import Compile  # noqa: E402
from flatout.levers.graph_outputs import GraphOutputs  # noqa: E402
from flatout.levers.job import JobFacts  # noqa: E402

GPU = JobFacts(
    device="cuda:0",
    step_ms=10.0,
    device_shares={"forward": 0.3, "backward": 0.6},
    busy_share=0.8,
    flops_per_step=2e12,
    peaks={"fp32": 500e12},
    habits={"input_shapes": 1, "roots": ["GPT"]},
)
MODES = ("default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune")


@pytest.mark.parametrize(
    ("mode", "tuned"),
    [("default", "max-autotune-no-cudagraphs"), ("reduce-overhead", "max-autotune"), ("max-autotune", None)],
)
def test_each_mode_has_one_that_is_autotuned(mode: str, tuned: str | None) -> None:
    found = Compile.autotuned(GPU, {"mode": mode})
    assert found == ({"mode": tuned} if tuned else None)


def test_on_the_cpu_there_is_nothing_to_autotune() -> None:
    assert Compile.autotuned(JobFacts(), {"mode": "default"}) is None


def test_autotuning_is_not_among_what_is_tried_first() -> None:
    assert [one["mode"] for one in Compile.variants(GPU)] == ["default", "reduce-overhead"]


def test_more_is_predicted_of_what_does_more() -> None:
    plain, graphs, tuned, both = (Compile.predict(GPU, {"mode": mode}) for mode in MODES)
    assert 1.0 < plain < tuned < both
    assert plain < graphs < both


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_reaches_torch_and_graphs_lend_their_outputs(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    lent: list[Any] = []

    def compiled(call: Any, mode: Any = None) -> Any:
        asked.append(mode)
        return call

    monkeypatch.setattr(torch, "compile", compiled)
    monkeypatch.setattr(GraphOutputs, "__call__", lambda self, *args: lent.append(args) or args[0])
    scene: Any = SimpleNamespace(torch=torch, is_on=lambda _: None)
    call = Compile(scene, {"mode": mode}).around(torch.nn.Identity(), lambda x: x)
    assert call(3) == 3
    assert asked == [None if mode == "default" else mode]
    assert bool(lent) == (mode in ("reduce-overhead", "max-autotune"))


@pytest.mark.parametrize("times", [1, 2, 99])
def test_a_loss_that_cannot_be_compiled_runs_as_written_and_is_told_of(
    times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def failing(*words: Any) -> Any:
        tried.append(words)
        if len(tried) > times:
            return torch.nn.functional.nll_loss(words[0].log_softmax(1), words[1])
        raise RuntimeError("no kernel\nfor that")

    monkeypatch.setattr(torch, "compile", lambda _: failing)
    monkeypatch.setattr(compile_lever, "_LARGE_LOSS", 1)
    told: list[Any] = []
    scene: Any = SimpleNamespace(torch=torch, note=lambda *words: told.append(words))
    lever = Compile(scene, {})
    logits, targets = torch.randn(4, 9, requires_grad=True), torch.arange(4)
    expected = torch.nn.functional.cross_entropy(logits, targets)
    lever.apply()
    try:
        for _ in range(5):
            torch.testing.assert_close(torch.nn.functional.cross_entropy(logits, targets), expected)
    finally:
        lever.undo()
    for_good = times == 99
    assert told == ([("compile", "the loss runs as written: RuntimeError: no kernel")] if for_good else [])
    assert len(tried) == (3 if for_good else 5)


def test_a_loss_that_somebody_only_traces_is_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def traced(*_: Any) -> Any:
        raise RuntimeError("nobody compiles while somebody traces")

    monkeypatch.setattr(torch, "compile", lambda _: traced)
    monkeypatch.setattr(compile_lever, "_LARGE_LOSS", 1)
    told: list[Any] = []
    lever = Compile(SimpleNamespace(torch=torch, note=lambda *words: told.append(words)), {})  # type: ignore[arg-type]
    lever.apply()
    try:
        with torch._subclasses.FakeTensorMode():
            logits = torch.randn(4, 9, requires_grad=True)
            loss = torch.nn.functional.cross_entropy(logits, torch.arange(4))
    finally:
        lever.undo()
    assert (loss.shape, told) == ((), [])


@pytest.mark.parametrize("mode", MODES[1:])
def test_torch_knows_the_modes(mode: str) -> None:
    assert mode in torch._inductor.list_mode_options()
