"""Levers that change the training by its precision: what they do, what they leave, where they refuse."""

import importlib.util
import itertools
import shutil
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from flatout.inside.scene import Scene as RealScene  # noqa: E402
from flatout.levers.bf16_parameters import Bf16Parameters  # noqa: E402
from flatout.levers.catalogue import BY_ID  # noqa: E402
from flatout.levers.float8_layers import Float8Layers, suits_float8  # noqa: E402
from flatout.levers.fp8 import Fp8  # noqa: E402
from flatout.levers.fp16 import Fp16  # noqa: E402
from flatout.levers.job import JobFacts  # noqa: E402
from flatout.levers.lever import Broken, Refused, Scene  # noqa: E402
from flatout.levers.optimizer_8bit import Optimizer8bit  # noqa: E402
from flatout.records.session import Order  # noqa: E402

nn = torch.nn

with_torchao = pytest.mark.skipif(
    importlib.util.find_spec("torchao") is None, reason="torchao is not installed: pip install '.[torchao]'"
)
# torchao's own warnings on the way in are none of ours.
from_torchao = pytest.mark.filterwarnings("ignore")
with_compiler = pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")), reason="torch.compile needs a C++ compiler"
)


def scene(model: Any, *optimizers: Any, roots: tuple[Any, ...] | None = None) -> Scene:
    return SimpleNamespace(  # type: ignore[return-value]
        torch=torch,
        device=torch.device("cpu"),
        roots=lambda: [model] if roots is None else list(roots),
        optimizers=lambda: list(optimizers),
    )


@pytest.fixture(autouse=True)
def from_nothing() -> None:
    torch.manual_seed(0)


class Small(nn.Module):
    """Shared weights, a constant that the script relies on, a norm with running averages."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, width), nn.Linear(width, width)
        self.shared = self.second
        self.norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, 4)
        self.register_buffer("scale", torch.linspace(0.9, 1.1, width))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.first(x)) * self.scale
        return self.head(self.shared(torch.relu(self.norm(self.second(x)))))


def data() -> tuple[Any, Any]:
    x = torch.randn(64, 8)
    return x, x[:, :4].argmax(dim=1)


def train(call: Any, optimizer: Any, steps: int = 40) -> list[float]:
    x, y = data()
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(call(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def state_of(model: Any, optimizer: Any) -> list[Any]:
    """Everything that must be left as it was: values, types, places in memory's order, gradients, state."""
    tensors = [*model.state_dict().values(), *(one.grad for one in model.parameters())]
    for state in optimizer.state.values():
        tensors += [value for _, value in sorted(state.items())]
    return [None if one is None else one.clone() for one in tensors]


def same(first: list[Any], second: list[Any]) -> bool:
    return len(first) == len(second) and all(
        (a is None and b is None) or (a.dtype == b.dtype and torch.equal(a, b))
        for a, b in zip(first, second, strict=True)
    )


# fp16 -------------------------------------------------------------------------------------------------------


def fp16(model: Any, *optimizers: Any) -> Fp16:
    lever = Fp16(scene(model, *optimizers), {})
    lever.apply()
    return lever


def test_fp16_learns_and_leaves_no_trace() -> None:
    model = Small()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    engine = torch.autograd._engine_run_backward
    lever = fp16(model, optimizer)
    seen = []
    call = lever.around(model, lambda x: seen.append(model.head(x.new_ones(1, 64)).dtype) or model(x))
    losses = train(call, optimizer)
    assert set(seen) == {torch.float16}
    assert losses[-1] < losses[0] / 2
    assert {one.dtype for one in model.parameters()} == {torch.float32}
    assert {one.grad.dtype for one in model.parameters()} == {torch.float32}
    before = state_of(model, optimizer)
    lever.undo()
    assert same(before, state_of(model, optimizer))
    assert torch.autograd._engine_run_backward is engine
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert not any(one._backward_hooks for one in model.parameters())


def test_gradients_have_their_true_size_and_add_up() -> None:
    """In float32 a power of two changes nothing: with the autocast left away, it must be bit for bit."""
    model, x = nn.Linear(8, 4), torch.randn(16, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def gradients() -> list[Any]:
        optimizer.zero_grad()
        for part in x.chunk(4):
            model(part).square().mean().backward()
        return [one.grad.clone() for one in model.parameters()]

    expected = gradients()
    lever = fp16(model, optimizer)
    assert all(torch.equal(a, b) for a, b in zip(expected, gradients(), strict=True))
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    assert float(norm) == pytest.approx(float(torch.stack([one.norm() for one in expected]).norm()))
    lever.undo()


def test_what_fp16_would_lose_survives() -> None:
    """Gradients below 6e-8 are nothing in fp16; scaled, they come back."""
    model = nn.Linear(16, 16, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lever = Fp16(scene(model, optimizer), {})
    call, x = lever.around(model, model), torch.ones(2, 16)

    def gradient() -> float:
        optimizer.zero_grad()
        (call(x) * 1e-8).sum().backward()
        return float(model.weight.grad.abs().max())

    assert gradient() == 0.0
    lever.apply()
    assert gradient() == pytest.approx(2e-8, rel=0.01)
    lever.undo()


@pytest.mark.parametrize("with_closure", [False, True])
def test_an_overflow_skips_the_update_and_halves_the_scale(with_closure: bool) -> None:
    model = nn.Linear(16, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    lever = fp16(model, optimizer)
    call = lever.around(model, model)
    size = 1.0

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (call(torch.ones(2, 16)) * size).sum()
        loss.backward()
        # A script may insist on a finite norm.
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        return loss

    def step() -> None:
        if with_closure:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()

    step()
    before, scale = [one.detach().clone() for one in model.parameters()], lever.scaling.scale
    size = 1e4  # times the scale, beyond 65,504
    step()
    assert lever.scaling.scale == scale / 2
    assert lever.scaling.skipped == 1
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert {float(state["step"]) for state in optimizer.state.values()} == {1.0}
    assert all(one.grad is not None for one in model.parameters())
    size = 1.0
    step()
    assert {float(state["step"]) for state in optimizer.state.values()} == {2.0}
    assert not any(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    lever.undo()


def test_an_overflow_in_one_of_several_passes_skips_their_update() -> None:
    model = nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lever = fp16(model, optimizer)
    call, before = lever.around(model, model), model.weight.detach().clone()
    for size in (1.0, 1e4, 1.0):
        (call(torch.ones(2, 16)) * size).sum().backward()
    optimizer.step()
    assert torch.equal(before, model.weight)
    assert lever.scaling.skipped == 1
    lever.undo()


def test_the_scale_grows_again_and_overflow_at_any_scale_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flatout.levers.loss_scaling._UPDATES_UNTIL_MORE", 3)
    model = nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    lever = fp16(model, optimizer)
    call, scale = lever.around(model, model), lever.scaling.scale
    for size, steps in ((1.0, 3), (float("inf"), 15)):
        for _ in range(steps):
            (call(torch.ones(2, 16)) * size).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        if steps == 3:
            assert lever.scaling.scale == 2 * scale
    call(torch.ones(2, 16))
    assert "at any scale" in lever.useless
    lever.undo()


def test_layers_that_are_thawed_later_are_seen() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lever, x = fp16(model, optimizer), torch.randn(3, 4)
    model(x).square().mean().backward()
    model[0].requires_grad_(True)
    model[1].requires_grad_(False).requires_grad_(True)
    optimizer.zero_grad()
    model(x).square().mean().backward()
    got = [one.grad.clone() for one in model.parameters()]
    lever.undo()
    optimizer.zero_grad()
    model(x).square().mean().backward()
    assert all(torch.equal(a, b.grad) for a, b in zip(got, model.parameters(), strict=True))


def test_checkpointing_is_scaled_once() -> None:
    from torch.utils.checkpoint import checkpoint

    model, x = nn.Linear(4, 4), torch.randn(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def gradient() -> Any:
        optimizer.zero_grad()
        # A pass within the pass, as models with reentrant checkpoints make.
        middle = model(x)
        checkpoint(model, middle, use_reentrant=True).square().mean().backward()
        return model.weight.grad.clone()

    expected = gradient()
    lever = fp16(model, optimizer)
    assert torch.equal(gradient(), expected)
    lever.undo()


def test_gradients_of_anything_else_are_never_scaled() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lever = fp16(model, optimizer)
    call, x = lever.around(model, model), torch.randn(3, 4, requires_grad=True)
    with pytest.raises(Broken, match="input of the model"):
        call(x)
    other = torch.ones(4, requires_grad=True)
    (model(x.detach()) * other).sum().backward()
    expected = torch.autograd.grad((model(x.detach()) * other).sum(), [other, model.weight])
    assert torch.equal(other.grad, expected[0])
    assert torch.equal(model.weight.grad, expected[1])
    call(x.detach())
    assert "no optimizer and no model holds" in lever.useless
    lever.undo()


def test_fp16_is_refused_beside_several_optimizers() -> None:
    model = nn.Linear(4, 4)
    one, other = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
    with pytest.raises(Refused, match="several optimizers"):
        fp16(model, one, other)
    with pytest.raises(Refused, match="LBFGS"):
        fp16(model, torch.optim.LBFGS(model.parameters()))
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(Refused, match="autocasts itself"):
        fp16(model, one)


# bf16 parameters --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_bf16_parameters_learn_and_come_back(kind: Any) -> None:
    model = Small()
    optimizer = kind(model.parameters(), lr=1e-2 if kind is torch.optim.AdamW else 0.1)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    train(model, optimizer, 3)
    identities = [id(one) for one in (*model.parameters(), *model.buffers())]
    strides = [one.stride() for one in model.parameters()]
    constant = model.scale.clone()
    lever = Bf16Parameters(scene(model, optimizer), {})
    lever.apply()
    call = lever.around(model, model)
    losses = train(call, optimizer)
    schedule.step()
    assert losses[-1] < losses[0] / 2
    tensors = [*model.parameters(), *(one.grad for one in model.parameters()), model.scale]
    tensors += [v for state in optimizer.state.values() for v in state.values() if v is not None and v.dim()]
    assert {one.dtype for one in tensors} == {torch.bfloat16}
    assert model.count.dtype == torch.int64
    assert call(data()[0]).dtype == torch.float32
    values = [one.detach().float() for one in model.parameters()]
    lever.undo()
    tensors = [*model.parameters(), *(one.grad for one in model.parameters()), *model.buffers()]
    tensors += [v for state in optimizer.state.values() for v in state.values() if v is not None and v.dim()]
    assert {one.dtype for one in tensors} == {torch.float32, torch.int64}
    assert all(torch.equal(a, b) for a, b in zip(values, model.parameters(), strict=True))
    assert [id(one) for one in (*model.parameters(), *model.buffers())] == identities
    assert [one.stride() for one in model.parameters()] == strides
    assert torch.equal(model.scale, constant)  # what nobody changed is as it was, not as bfloat16 left it
    assert train(model, optimizer)[-1] < losses[0] / 2
    fresh = kind(Small().parameters(), lr=0.1)
    fresh.load_state_dict(optimizer.state_dict())


def test_without_a_call_everything_is_as_found_bit_for_bit() -> None:
    model = Small()
    optimizer = torch.optim.AdamW(model.parameters())
    before = state_of(model, optimizer)
    lever = Bf16Parameters(scene(model, optimizer), {})
    lever.apply()
    assert not same(before, state_of(model, optimizer))
    lever.undo()
    assert same(before, state_of(model, optimizer))


def test_it_can_come_and_go_at_the_same_place() -> None:
    model = nn.Linear(8, 8)
    lever = Bf16Parameters(scene(model), {})
    lever.apply()
    place = model.weight.data_ptr()
    lever.undo()
    lever.apply()
    assert model.weight.data_ptr() == place
    lever.undo()


def test_a_place_in_another_order_is_not_used_again() -> None:
    model = nn.Conv2d(3, 8, 3)
    lever = Bf16Parameters(scene(model), {})
    lever.apply()
    lever.undo()
    model.to(memory_format=torch.channels_last)
    order = model.weight.stride()
    lever.apply()
    assert model.weight.stride() == order
    lever.undo()
    assert model.weight.stride() == order


def test_recurrent_layers_and_gradients_that_are_kept() -> None:
    model = nn.LSTM(4, 8, batch_first=True)
    x = torch.randn(2, 3, 4)
    model(x)[0].sum().backward()
    expected = model.weight_hh_l0.grad.to(torch.bfloat16)
    lever = Bf16Parameters(scene(model), {})
    lever.apply()
    assert torch.equal(model.weight_hh_l0.grad, expected)
    out, (hidden, _) = lever.around(model, model)(x)
    assert out.dtype == hidden.dtype == torch.float32
    out.sum().backward()
    assert model.weight_hh_l0.grad.dtype == torch.bfloat16
    lever.undo()
    assert model(x)[0].dtype == torch.float32


def test_other_precisions_are_left_alone() -> None:
    with pytest.raises(Refused, match="parameters are in float64"):
        Bf16Parameters(scene(nn.Linear(2, 2).double()), {}).apply()
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(Refused, match="autocasts itself"):
        Bf16Parameters(scene(nn.Linear(2, 2)), {}).apply()


# In a scene: models that levers have remade -----------------------------------------------------------------


def in_a_scene(model: Any, optimizer: Any, *levers: str) -> tuple[RealScene, Any, dict[str, Any]]:
    order = Order(folder="", levers=tuple({"id": one, "settings": {}} for one in levers))
    facts: dict[str, Any] = {}
    log = SimpleNamespace(add=lambda _event: None)
    session: Any = SimpleNamespace(torch=torch, order=order, facts=facts, log=log)
    real = RealScene(session)
    real.optimizer_made(optimizer)
    call = real.call_of(model, model._call_impl)
    real.begin(model)
    return real, call, facts["levers"]


def test_evaluation_goes_through_what_has_remade_the_model() -> None:
    model, x = Small(), data()[0]
    real, call, facts = in_a_scene(model, torch.optim.SGD(model.parameters(), lr=0.1), "bf16-parameters")
    assert facts == {"bf16-parameters": {"applied": True}}
    assert call(x).dtype == torch.float32
    model.eval()
    with torch.no_grad():
        assert call(x).dtype == torch.float32
    real.end()
    with torch.no_grad():
        assert torch.equal(call(x), model(x))


class Stubborn(nn.Linear):
    """Makes float32 of its own, which a layer in bfloat16 does not take."""

    def forward(self, x: Any) -> Any:
        return super().forward(x + torch.ones(x.shape[-1], dtype=torch.float32))


def test_a_model_that_cannot_be_remade_runs_as_written() -> None:
    model = Stubborn(4, 4)
    before, x = model.weight.detach().clone(), torch.randn(2, 4)
    expected = model(x)
    real, call, facts = in_a_scene(model, torch.optim.SGD(model.parameters(), lr=0.1), "bf16-parameters")
    assert torch.equal(call(x), expected)
    real.end()
    assert "RuntimeError" in facts["bf16-parameters"]["dropped"]
    assert torch.equal(model.weight, before)


# The 8-bit optimizer ----------------------------------------------------------------------------------------


def large() -> Any:
    return nn.Sequential(nn.Linear(8, 1024), nn.ReLU(), nn.Linear(1024, 4))


@with_torchao
@with_compiler
@from_torchao
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_averages_in_8_bits_learn_and_load_back(kind: Any) -> None:
    from torchao.optim.subclass_8bit import OptimState8bit

    def trained(*, low: bool) -> tuple[list[float], Any, Any, Any]:
        torch.manual_seed(0)
        model = large()
        optimizer = kind(model.parameters(), lr=1e-2, weight_decay=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        lever = Optimizer8bit(scene(model, optimizer), {})
        losses = train(model, optimizer, 3)
        if low:
            lever.apply()
        losses += train(model, optimizer, 10)
        schedule.step()
        return losses + train(model, optimizer, 5), model, optimizer, lever

    plain, _, as_written, _ = trained(low=False)
    losses, model, optimizer, lever = trained(low=True)
    assert losses == pytest.approx(plain, rel=0.1, abs=0.01)  # schedule, decay and counters included
    kinds = [type(optimizer.state[one]["exp_avg"]) for one in model.parameters()]
    assert kinds == [OptimState8bit, torch.Tensor, OptimState8bit, torch.Tensor]
    assert {float(state["step"]) for state in optimizer.state.values()} == {18.0}
    assert optimizer.param_groups[0]["lr"] == as_written.param_groups[0]["lr"] == 5e-3

    saved = optimizer.state_dict()
    assert {type(v) for state in saved["state"].values() for v in state.values()} == {torch.Tensor}
    kind(large().parameters()).load_state_dict(saved)
    optimizer.load_state_dict(saved)
    train(model, optimizer, 2)
    assert type(optimizer.state[model[0].weight]["exp_avg"]) is OptimState8bit

    lever.undo()
    assert vars(optimizer).keys() == vars(as_written).keys()
    assert {type(v) for state in optimizer.state.values() for v in state.values()} == {torch.Tensor}
    assert {v.dtype for state in optimizer.state.values() for v in state.values()} == {torch.float32}
    assert train(model, optimizer, 3)[-1] < losses[0]


@with_torchao
@from_torchao
def test_a_state_that_saw_no_update_is_as_found_bit_for_bit() -> None:
    model = large()
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, 2)
    before = state_of(model, optimizer)
    lever = Optimizer8bit(scene(model, optimizer), {})
    lever.apply()
    lever.undo()
    assert same(before, state_of(model, optimizer))


@with_torchao
@from_torchao
def test_an_update_that_cannot_be_compiled_is_left_to_torch() -> None:
    def trained(*, low: bool) -> tuple[Any, str]:
        torch.manual_seed(0)
        model = large()
        optimizer = torch.optim.AdamW(model.parameters())
        lever = Optimizer8bit(scene(model, optimizer), {})
        if low:
            lever.apply()

            def fails(*_args: Any) -> None:
                raise RuntimeError("no compiler")

            lever._taken[0]._update = fails
        train(model, optimizer, 3)
        return [one.detach() for one in model.parameters()], lever.useless

    (plain, _), (changed, useless) = trained(low=False), trained(low=True)
    assert all(torch.equal(a, b) for a, b in zip(plain, changed, strict=True))
    assert useless == "RuntimeError: no compiler"


@with_torchao
@from_torchao
def test_other_optimizers_are_left_alone() -> None:
    class Own(torch.optim.AdamW):
        pass

    model = large()
    for optimizer in (
        torch.optim.SGD(model.parameters(), lr=0.1),
        torch.optim.AdamW(model.parameters(), amsgrad=True),
        torch.optim.AdamW(model.parameters(), foreach=False),
        Own(model.parameters()),
    ):
        before = vars(optimizer).copy()
        with pytest.raises(Refused, match="no optimizer is an Adam"):
            Optimizer8bit(scene(model, optimizer), {}).apply()
        assert vars(optimizer) == before


# float8 -----------------------------------------------------------------------------------------------------


@with_torchao
@from_torchao
def test_layers_in_float8_use_the_same_parameters_and_go_without_a_trace() -> None:
    from torchao.float8.float8_linear import Float8Linear

    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    modules = list(model.modules())
    parameters = {name: id(one) for name, one in model.named_parameters()}
    names = list(model.state_dict())
    layers = Float8Layers(torch, emulated=True)
    assert layers.put(model) == 2
    assert [type(one) for one in model][::2] == [Float8Linear, Float8Linear, nn.Linear]
    assert {name: id(one) for name, one in model.named_parameters()} == parameters
    assert list(model.state_dict()) == names
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x = torch.randn(64, 16)
    y = x[:, :4].argmax(dim=1)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
    low = model[0]
    model.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    layers.take()
    assert list(model.modules()) == modules
    assert not any(one.training for one in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert {name: id(one) for name, one in model.named_parameters()} == parameters
    assert layers.put(model) == 2
    assert model[0] is low  # compiled code knows it again
    layers.take()


def test_which_layers_suit_float8() -> None:
    assert suits_float8(torch, nn.Linear(32, 48, bias=False))
    assert not suits_float8(torch, nn.Linear(32, 50))
    assert not suits_float8(torch, nn.Conv2d(16, 16, 3))
    assert not suits_float8(torch, nn.MultiheadAttention(32, 2).out_proj)  # a class of its own
    watched = nn.Linear(32, 32)
    watched.register_forward_hook(lambda *_: None)
    assert not suits_float8(torch, watched)


# Refusals ---------------------------------------------------------------------------------------------------

GPU = {"device": "cuda:0", "capability": (9, 0), "step_ms": 10.0}
OLD = {**GPU, "capability": (7, 5)}
ADAM = {"name": "AdamW", "fused": None, "foreach": None, "supports_fused": True}
ONE = {"optimizers": [ADAM]}
AO = {"packages": {"torchao": "0.18.0"}}


@pytest.mark.parametrize(
    ("lever", "facts", "habits", "says"),
    [
        ("fp16", {}, {}, "not train on a GPU"),
        ("fp16", GPU, {}, "bf16 does the same without scaling"),
        ("fp16", {**GPU, "capability": None}, {}, "not known"),
        ("fp16", OLD, {"autocast": "fp16"}, "autocasts itself, to fp16"),
        ("fp16", OLD, {"scales_loss": True}, "scales its loss itself"),
        ("fp16", OLD, {"parameter_dtype": "float16"}, "parameters are in float16"),
        ("fp16", {**OLD, "ranks": 2}, ONE, "several ranks"),
        ("fp16", OLD, {}, "no optimizer"),
        ("fp16", OLD, {"optimizers": [ADAM, ADAM]}, "several optimizers"),
        ("fp16", OLD, {"optimizers": [ADAM | {"name": "LBFGS"}]}, "LBFGS"),
        ("fp16", OLD, ONE, ""),
        ("bf16-parameters", GPU, {"autocast": "bf16"}, "autocasts itself, to bf16"),
        ("bf16-parameters", GPU, {"scales_loss": True}, "scales its loss"),
        ("bf16-parameters", GPU, {"parameter_dtype": "bfloat16"}, "parameters are in bfloat16"),
        ("bf16-parameters", OLD, {}, "8.0"),
        ("bf16-parameters", {}, {}, "no instructions"),
        ("bf16-parameters", {**GPU, "ranks": 2}, {}, "several ranks"),
        ("bf16-parameters", GPU, ONE, ""),
        ("optimizer-8bit", GPU, ONE, "torchao is not installed: pip install 'flatout[torchao]'"),
        ("optimizer-8bit", GPU, AO, "no optimizer"),
        (
            "optimizer-8bit",
            GPU,
            AO | {"optimizers": [ADAM | {"name": "SGD"}]},
            "SGD is neither Adam nor AdamW",
        ),
        ("optimizer-8bit", GPU, AO | {"optimizers": [ADAM | {"fused": True}]}, "chose an implementation"),
        ("optimizer-8bit", {}, AO | ONE, "no C++ compiler"),
        ("optimizer-8bit", GPU, AO | ONE, ""),
        ("fp8", {}, AO, "not train on a GPU"),
        ("fp8", {**GPU, "capability": (8, 0)}, AO, "8.9"),
        ("fp8", GPU, {"float8_layers": 3}, "torchao is not installed: pip install 'flatout[torchao]'"),
        ("fp8", GPU, AO, "multiples of 16"),
        ("fp8", GPU, AO | {"float8_layers": 3, "compiles": True}, "compiles itself"),
        ("fp8", GPU, AO | {"float8_layers": 3}, ""),
    ],
)
def test_refusals_say_why(lever: str, facts: dict[str, Any], habits: dict[str, Any], says: str) -> None:
    reason = BY_ID[lever].check(JobFacts(**facts, habits=habits))
    assert says in reason
    assert bool(reason) == bool(says)


def test_a_plan_from_a_machine_with_torchao_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    model = large()
    with pytest.raises(Refused, match="torchao is not installed: pip install"):
        Optimizer8bit(scene(model, torch.optim.AdamW(model.parameters())), {}).apply()
    with pytest.raises(Refused, match="not train on a GPU"):
        Fp8(scene(model), {}).apply()


def test_extras_are_found_without_being_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from flatout.inside import habits

    monkeypatch.setattr(habits, "_EXTRAS", ("idlelib", "nothing_of_this_name"))
    before = set(sys.modules)
    assert habits._packages() == {"idlelib": ""}
    assert "idlelib" not in set(sys.modules) - before


def test_levers_of_precision_do_not_stand_beside_each_other() -> None:
    ids = ("bf16", "fp16", "bf16-parameters")
    for one, other in itertools.combinations(ids, 2):
        assert other in BY_ID[one].conflicts or one in BY_ID[other].conflicts


def test_predictions_follow_the_peaks() -> None:
    peaks = {"fp32": 50e12, "fp16": 400e12, "bf16": 800e12, "fp8": 1600e12}
    job = JobFacts(**GPU, flops_per_step=0.4e12, peaks=peaks, device_shares={"optimizer": 0.1})
    assert BY_ID["fp16"].predict(job, {}) == pytest.approx(1 / (0.2 + 0.8 / 8 / 0.75))
    assert BY_ID["fp8"].predict(job, {}) == pytest.approx(1 / (0.2 + 0.8 / 32 / 0.67))
    assert BY_ID["bf16-parameters"].predict(job, {}) == pytest.approx(1 / (0.2 + 0.8 / 16 / 0.75) / 0.95)
    assert BY_ID["optimizer-8bit"].predict(job, {}) == pytest.approx(1 / (0.9 + 0.1 * 16 / 28))
