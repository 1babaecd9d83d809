"""Each lever changes what it says, puts everything back as it was found, and refuses where it must."""

import dataclasses
import gc
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from flatout.levers.bf16 import Bf16  # noqa: E402
from flatout.levers.catalogue import BY_ID, LEVERS  # noqa: E402
from flatout.levers.channels_last import ChannelsLast  # noqa: E402
from flatout.levers.compile import Compile  # noqa: E402
from flatout.levers.cudnn_autotune import CudnnAutotune  # noqa: E402
from flatout.levers.debug_modes import DebugModes  # noqa: E402
from flatout.levers.fused_optimizer import FusedOptimizer, supports_fused  # noqa: E402
from flatout.levers.garbage_collector import GarbageCollector  # noqa: E402
from flatout.levers.job import JobFacts, amdahl  # noqa: E402
from flatout.levers.lever import Lever, Refused, Scene  # noqa: E402
from flatout.levers.outputs import map_tensors  # noqa: E402
from flatout.levers.tf32 import Tf32  # noqa: E402

nn = torch.nn


def scene(roots: tuple[Any, ...] = (), optimizers: tuple[Any, ...] = (), device: str = "cpu") -> Scene:
    return SimpleNamespace(  # type: ignore[return-value]
        torch=torch,
        device=torch.device(device),
        roots=lambda: list(roots),
        optimizers=lambda: list(optimizers),
    )


def test_every_lever_has_a_page_a_class_and_a_name_of_its_own() -> None:
    assert len(BY_ID) == len(LEVERS)
    for lever in LEVERS:
        assert lever.__doc__
        assert lever.title
        assert lever.safety in ("exact", "resampled", "numeric", "memory", "recipe")


# Switches ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("found", [True, False])
def test_tf32_is_put_back_as_it_was_found(found: bool) -> None:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    try:
        matmul.allow_tf32 = found
        lever = Tf32(scene(device="cuda"), {})
        lever.apply()
        assert matmul.allow_tf32
        assert cudnn.allow_tf32
        lever.undo()
        assert (matmul.allow_tf32, cudnn.allow_tf32) == (found, before[1])
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def test_cudnn_autotune_and_debug_modes_are_put_back() -> None:
    cudnn = torch.backends.cudnn
    lever = CudnnAutotune(scene(device="cuda"), {})
    before = cudnn.benchmark
    lever.apply()
    assert cudnn.benchmark
    lever.undo()
    assert cudnn.benchmark == before
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        modes = DebugModes(scene(), {})
        modes.apply()
        assert not torch.is_anomaly_enabled()
        modes.undo()
        assert torch.is_anomaly_enabled()
        assert not torch.is_anomaly_check_nan_enabled()


@pytest.mark.usefixtures("whole_heap")
def test_the_collector_is_put_back_and_never_turned_off() -> None:
    before = gc.get_threshold()
    lever = GarbageCollector(scene(), {})
    lever.apply()
    assert gc.isenabled()
    assert gc.get_threshold()[0] > before[0]
    assert gc.get_freeze_count() > 0
    lever.undo()
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


# Precision --------------------------------------------------------------------------------------------------


def test_bf16_computes_in_bf16_and_gives_back_float32() -> None:
    seen = []
    model = nn.Linear(4, 4)

    def call(x: Any) -> Any:
        out = model(x)
        seen.append(out.dtype)
        return {"out": out, "many": [out, (out, 3)], "whole": torch.arange(3)}

    found = Bf16(scene(), {}).around(model, call)(torch.ones(2, 4))
    assert seen == [torch.bfloat16]
    assert found["out"].dtype == found["many"][1][0].dtype == torch.float32
    assert found["whole"].dtype == torch.int64
    found["out"].sum().backward()
    assert model.weight.grad.dtype == torch.float32
    assert not torch.is_autocast_enabled("cpu")


def test_outputs_keep_their_types() -> None:
    from collections import OrderedDict, namedtuple

    pair = namedtuple("pair", "a b")
    value = [pair(torch.ones(1), None), {"x": (torch.zeros(1), "text")}, OrderedDict(y=torch.ones(2))]
    found = map_tensors(lambda tensor: tensor + 1, value)
    assert type(found[0]) is pair
    assert found[0].a.item() == 2
    assert found[1]["x"][1] == "text"
    assert type(found[2]) is OrderedDict
    assert found[2]["y"].tolist() == [2, 2]


# The optimizer ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD])
@pytest.mark.parametrize("after", [0, 3])
def test_fused_gives_the_same_update_and_can_be_undone_in_the_middle(kind: Any, after: int) -> None:
    def trained(fused: bool) -> Any:
        torch.manual_seed(0)
        parameter = nn.Parameter(torch.randn(5, 5))
        optimizer = kind([parameter], lr=0.01)
        lever = FusedOptimizer(scene(optimizers=(optimizer,)), {})
        for number in range(9):
            if fused and number == after:
                lever.apply()
                assert optimizer.param_groups[0]["fused"]
            if fused and number == after + 3:
                lever.undo()
            optimizer.zero_grad()
            (parameter**2).sum().backward()
            optimizer.step()
        return parameter.detach(), optimizer

    (plain, as_written), (changed, put_back) = trained(False), trained(True)
    torch.testing.assert_close(plain, changed, rtol=1e-5, atol=1e-7)
    group, expected = put_back.param_groups[0], as_written.param_groups[0]
    assert {k: v for k, v in group.items() if k != "params"} == {
        k: v for k, v in expected.items() if k != "params"
    }
    assert vars(put_back).keys() == vars(as_written).keys()


def test_a_choice_of_the_scripts_own_is_left_alone() -> None:
    parameter = nn.Parameter(torch.ones(3))
    for chosen in ({"foreach": False}, {"fused": True}):
        optimizer = torch.optim.AdamW([parameter], **chosen)
        before = dict(optimizer.param_groups[0])
        lever = FusedOptimizer(scene(optimizers=(optimizer,)), {})
        lever.apply()
        assert optimizer.param_groups[0] == before
        lever.undo()


def test_who_has_a_fused_implementation() -> None:
    class Own(torch.optim.AdamW):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    parameter = [nn.Parameter(torch.ones(3))]
    assert supports_fused(torch.optim.AdamW(parameter))
    assert not supports_fused(Own(parameter))
    assert not supports_fused(torch.optim.RMSprop(parameter))
    assert not supports_fused(torch.optim.LBFGS(parameter))


# Layout -----------------------------------------------------------------------------------------------------


def test_channels_last_takes_gradients_and_states_along() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.rand(2, 3, 8, 8)).sum().backward()
    optimizer.step()
    weight = model[0].weight
    before = weight.grad.clone(), optimizer.state[weight]["momentum_buffer"].clone()
    lever = ChannelsLast(scene((model,), (optimizer,)), {})
    for change in (lever.apply, lever.undo):
        change()
        after = weight.grad, optimizer.state[weight]["momentum_buffer"]
        for one, other in zip(before, after, strict=True):
            assert other.stride() == weight.stride()
            assert torch.equal(one, other)
    assert weight.is_contiguous()


def test_channels_last_changes_strides_alone_and_puts_them_back() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 2))
    strides = [parameter.stride() for parameter in model.parameters()]
    values = [parameter.detach().clone() for parameter in model.parameters()]
    identities = [id(parameter) for parameter in model.parameters()]
    lever = ChannelsLast(scene(roots=(model,)), {})
    lever.apply()
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
    seen = []
    call = lever.around(model, lambda x, scale: seen.append((x.stride(), scale)) or model(x))
    assert call(torch.randn(2, 3, 8, 8), scale=2).shape == (2, 2)
    assert seen == [((192, 1, 24, 3), 2)]
    lever.undo()
    assert [parameter.stride() for parameter in model.parameters()] == strides
    assert [id(parameter) for parameter in model.parameters()] == identities
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), values, strict=True))


def test_a_place_that_was_kept_is_used_again_only_where_it_suits() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3))
    lever = ChannelsLast(scene(roots=(model,)), {})
    lever.apply()
    place = model[0].weight.data_ptr()
    lever.undo()
    lever.apply()
    assert model[0].weight.data_ptr() == place  # graphs that were recorded know it
    lever.undo()
    model.double()
    lever.apply()
    assert model[0].weight.dtype == torch.float64
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)


# Graphs -----------------------------------------------------------------------------------------------------


def test_a_compilation_without_a_graph_has_failed() -> None:
    lever = Compile(scene(), {"mode": "default"})
    call = lever._insisting_on_a_graph(lambda: 1)
    assert call() == 1  # what the call returned stands
    assert "found nothing" in lever.useless


# Refusals ---------------------------------------------------------------------------------------------------

GPU = {"device": "cuda:0", "capability": (9, 0), "step_ms": 10.0}


@pytest.mark.parametrize(
    ("lever", "facts", "habits", "says"),
    [
        ("tf32", {}, {}, "not train on a GPU"),
        ("tf32", {**GPU, "capability": (7, 5)}, {}, "no TF32"),
        ("tf32", GPU, {"tf32": True}, "itself"),
        ("tf32", GPU, {"parameter_dtype": "bfloat16"}, "bfloat16"),
        ("bf16", GPU, {"autocast": "fp16"}, "autocasts itself, to fp16"),
        ("bf16", GPU, {"scales_loss": True}, "scales its loss"),
        ("bf16", {**GPU, "capability": (7, 0)}, {}, "8.0"),
        ("bf16", {}, {}, "no instructions"),
        ("compile", GPU, {"compiles": True}, "compiles itself"),
        ("compile", {}, {}, "no C++ compiler"),
        ("compile", GPU, {"input_shapes": 12}, "12 shapes"),
        ("fused-optimizer", GPU, {}, "no optimizer"),
        ("channels-last", GPU, {}, "no two-dimensional"),
        ("channels-last", GPU, {"convolutions": 3, "channels_last": True}, "already"),
        ("cudnn-autotune", GPU, {"convolutions": 3, "deterministic": True}, "deterministic"),
        ("garbage-collector", GPU, {"collector_share": 0.001}, "less than 0.5 %"),
        ("debug-modes", GPU, {}, "none is on"),
        ("loader", GPU, {}, "no DataLoader"),
    ],
)
def test_refusals_say_why(lever: str, facts: dict[str, Any], habits: dict[str, Any], says: str) -> None:
    assert says in BY_ID[lever].check(JobFacts(**facts, habits=habits))


@pytest.mark.parametrize("lever", [Tf32, CudnnAutotune])
def test_a_plan_from_a_gpu_is_refused_on_the_cpu(lever: type[Lever]) -> None:
    with pytest.raises(Refused, match="not train on a GPU"):
        lever(scene(), {}).apply()


def test_bf16_steps_aside_for_a_script_that_autocasts() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(Refused, match="itself"):
        Bf16(scene(), {}).apply()
    Bf16(scene(), {}).apply()


def test_graphs_are_not_tried_under_accumulation_or_with_several_shapes() -> None:
    def modes(**changes: Any) -> list[str]:
        habits = changes.pop("habits", {"input_shapes": 1, "roots": ["GPT"]})
        return [one["mode"] for one in Compile.variants(JobFacts(**GPU, habits=habits, **changes))]

    assert modes() == ["default", "reduce-overhead"]
    assert modes(micro_batches=4.0) == ["default"]
    assert modes(habits={"input_shapes": 3}) == ["default"]
    assert modes(habits={"input_shapes": 1, "roots": ["G", "D"]}) == ["default"]


def test_predictions_follow_the_peaks_and_amdahl() -> None:
    peaks = {"fp32": 50e12, "tf32": 400e12, "bf16": 800e12}
    # 8 of 10 ms are products at the peak of float32.
    job = JobFacts(**GPU, flops_per_step=0.4e12, peaks=peaks, habits={"parameter_dtype": "float32"})
    assert Tf32.predict(job, {}) == pytest.approx(1 / (0.2 + 0.8 / 8 / 0.6))
    assert Bf16.predict(job, {}) == pytest.approx(1 / (0.2 + 0.8 / 16 / 0.75))
    assert Tf32.predict(JobFacts(**GPU), {}) == 1.0
    assert amdahl(0.5, 2.0) == pytest.approx(4 / 3)


@pytest.mark.parametrize(
    ("facts", "habits", "expected"),
    [
        ({}, {}, 2.0**-17),
        (GPU, {}, 2.0**-17),
        (GPU, {"tf32": True}, 2.0**-11),
        (GPU, {"convolutions": 3}, 2.0**-11),  # which torch computes in TF32 unless told otherwise
        (GPU, {"autocast": "bf16"}, 2.0**-9),
        ({}, {"parameter_dtype": "float64"}, 2.0**-46),
    ],
)
def test_another_order_of_sums_differs_by_what_the_job_computes_in(
    facts: dict[str, Any], habits: dict[str, Any], expected: float
) -> None:
    job = JobFacts(habits=habits, **facts)
    assert Compile.tolerance(job) == max(Compile.roundoff, expected)
    assert FusedOptimizer.tolerance(job) == 2.0**-23  # nothing is added up there
    assert Bf16.tolerance(job) == 2.0**-9


def test_convolutions_are_in_tf32_unless_the_script_says_otherwise() -> None:
    peaks = {"fp32": 50e12, "tf32": 400e12, "bf16": 800e12}
    habits = {"convolutions": 53, "linears": 1, "convolutions_in_tf32": True}
    pictures = JobFacts(device="cuda:0", step_ms=185.0, flops_per_step=6.3e12, peaks=peaks, habits=habits)
    assert pictures.products_dtype == "tf32"
    assert 1.0 < Bf16.predict(pictures, {}) < 1.1
    exact = dataclasses.replace(pictures, habits={**habits, "convolutions_in_tf32": False})
    assert exact.products_dtype == "fp32"
    # One convolution that cuts pictures into patches makes no such network.
    patches = dataclasses.replace(pictures, habits={**habits, "convolutions": 1, "linears": 48})
    assert patches.products_dtype == "fp32"
    assert Bf16.predict(patches, {}) > 2.0
