"""Levers that give time for memory: compiled code keeps less, and they are tried for that goal alone."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch._functorch.config as functorch  # noqa: E402

from flatout.levers.activation_budget import ActivationBudget  # noqa: E402
from flatout.levers.catalogue import LEVERS  # noqa: E402
from flatout.levers.compile import Compile  # noqa: E402
from flatout.levers.job import JobFacts  # noqa: E402
from flatout.levers.lever import Refused  # noqa: E402
from flatout.records.plan import Choice  # noqa: E402
from flatout.records.tuning import Pace  # noqa: E402
from flatout.tune.lean import lean  # noqa: E402
from flatout.tune.limits import Limits  # noqa: E402
from flatout.tune.pace import Measured  # noqa: E402
from flatout.tune.search import Finder  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
nn = torch.nn
SCENE: Any = SimpleNamespace(torch=torch, device=torch.device("cpu"), is_on=lambda _: None)
GPU = JobFacts(
    device="cuda:0",
    capability=(9, 0),
    step_ms=10.0,
    device_shares={"forward": 0.3, "backward": 0.6},
    habits={
        "input_shapes": 1,
        "roots": ["LlamaForCausalLM"],
        "hf_checkpointing": {"supported": True, "on": False},
    },
)


def test_the_budget_is_set_and_put_back() -> None:
    lever = ActivationBudget(SCENE, {"budget": 0.25})
    lever.apply()
    assert functorch.activation_memory_budget == 0.25
    lever.undo()
    assert functorch.activation_memory_budget == 1.0


def test_a_budget_of_the_scripts_own_stays() -> None:
    with functorch.patch(activation_memory_budget=0.7):
        with pytest.raises(Refused, match=r"to 0\.7"):
            ActivationBudget(SCENE, {"budget": 0.5}).apply()
        assert functorch.activation_memory_budget == 0.7
    assert "compiles itself" in ActivationBudget.check(JobFacts(habits={"compiles": True}))
    assert [one["budget"] for one in ActivationBudget.variants(JobFacts())] == [0.2, 0.5]


def test_compiled_code_keeps_less_and_computes_the_same() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.GELU())]
    model, x = nn.Sequential(*layers), torch.randn(64, 32)
    kept: list[int] = []

    def packed(tensor: Any) -> Any:
        kept.append(tensor.numel() if not isinstance(tensor, nn.Parameter) else 0)
        return tensor

    def trained(call: Any) -> tuple[int, list[Any]]:
        kept.clear()
        model.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(packed, lambda tensor: tensor):
            out = call(x)
        out.square().mean().backward()
        return sum(kept), [parameter.grad.clone() for parameter in model.parameters()]

    whole, expected = trained(Compile(SCENE, {}).around(model, model._call_impl))
    budget = ActivationBudget(SCENE, {"budget": 0.2})
    budget.apply()
    try:
        less, found = trained(Compile(SCENE, {}).around(model, model._call_impl))
    finally:
        budget.undo()
    assert less < 0.6 * whole
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


# When they are tried ----------------------------------------------------------------------------------------


def test_memory_levers_are_tried_for_that_goal_alone() -> None:
    finder = Finder(GPU, Limits())
    assert not {"activation-budget", "hf-checkpointing"} & {one.id for one in finder.candidates(LEVERS)}
    assert (
        finder.conclusions.trials["activation-budget"].reason
        == "it saves memory, not time: with --goal memory, or where --max-memory binds"
    )
    candidates = Finder(GPU, Limits(for_memory=True)).candidates(LEVERS)
    known = ("activation-budget", "hf-checkpointing")
    assert [one.words() for one in candidates if one.id in known] == [
        "activation-budget (budget=0.2)",
        "activation-budget (budget=0.5)",
        "hf-checkpointing",
    ]


class Runs:
    """A job whose peak and pace are known for any levers."""

    def __init__(self, peaks: dict[str, float], times: dict[str, float]) -> None:
        self.peaks, self.times = peaks, times
        self.asked: list[tuple[str, ...]] = []

    def measure(self, _what: str, levers: tuple[Choice, ...], as_written: Pace) -> Measured:
        self.asked.append(tuple(one.words() for one in levers))
        peak, step_ms = float(as_written.peak_bytes or 0), as_written.step_ms
        for one in levers:
            peak *= self.peaks.get(one.words(), self.peaks.get(one.id, 1.0))
            step_ms *= self.times.get(one.words(), self.times.get(one.id, 1.0))
        pace = dataclasses.replace(as_written, peak_bytes=int(peak), step_ms=step_ms)
        return Measured(pace, None, "stopped")


AS_WRITTEN = Pace(
    step_ms=10.0, samples_per_s=None, mfu=None, gpu_busy_share=None, peak_bytes=1_000_000, unknown={}
)


def found_by(
    runs: Any, skip: frozenset[str] = frozenset(), on_ctrl_c: Any = pytest.fail
) -> tuple[list[str], Finder]:
    only = frozenset({"compile", "activation-budget", "hf-checkpointing"})
    finder = Finder(GPU, Limits(for_memory=True, only=only, skip=skip))
    candidates = finder.candidates(LEVERS)
    found, _ = lean(finder.conclusions, candidates, runs, float("inf"), AS_WRITTEN, on_ctrl_c)
    return [one.words() for one in found], finder


def test_a_budget_brings_the_compiler_that_it_needs() -> None:
    runs = Runs({"activation-budget": 0.6}, {"compile": 0.7, "activation-budget": 1.2})
    found, finder = found_by(runs)
    assert found == ["activation-budget (budget=0.2)", "compile (default)"]
    assert finder.conclusions.trials["compile (default)"].verdict == "kept"
    assert finder.conclusions.trials["activation-budget (budget=0.5)"].verdict == "skipped"


def test_ctrl_c_keeps_what_was_found_to_save_memory() -> None:
    class Ended(Runs):
        def measure(self, what: str, levers: tuple[Choice, ...], as_written: Pace) -> Measured:
            if len(self.asked) == 1:
                raise KeyboardInterrupt
            return super().measure(what, levers, as_written)

    told: list[str] = []
    found, finder = found_by(
        Ended({"activation-budget": 0.6}, {"compile": 0.7}), on_ctrl_c=lambda: told.append("ended")
    )
    assert found == ["activation-budget (budget=0.2)", "compile (default)"]
    assert told == ["ended"]
    left = [trial for trial in finder.conclusions.trials.values() if trial.reason == "ended by Ctrl-C"]
    assert left
    assert {trial.verdict for trial in left} == {"skipped"}


def test_a_budget_that_costs_too_much_leaves_the_larger_one_to_be_tried() -> None:
    times = {"activation-budget (budget=0.2)": 2.0, "activation-budget (budget=0.5)": 1.1, "compile": 0.8}
    found, finder = found_by(Runs({"activation-budget": 0.6, "compile": 0.9}, times))
    assert found == ["activation-budget (budget=0.5)", "compile (default)"]
    assert finder.conclusions.trials["activation-budget (budget=0.2)"].verdict == "rejected"


def test_without_a_compiler_there_is_no_budget() -> None:
    found, finder = found_by(Runs({}, {}), skip=frozenset({"compile"}))
    assert found == []
    assert finder.conclusions.trials["activation-budget (budget=0.2)"].reason == (
        "it does nothing without compile, which cannot be tried"
    )
