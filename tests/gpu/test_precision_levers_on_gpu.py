"""Levers that change precision on a real GPU: memory falls, kernels are those promised, training goes on."""

import importlib.util
from typing import Any

import pytest
import torch
from torch import nn

from flatout.levers.bf16_parameters import Bf16Parameters
from flatout.levers.compile import Compile
from flatout.levers.fp8 import Fp8
from flatout.levers.fp16 import Fp16
from flatout.levers.lever import Refused
from flatout.levers.optimizer_8bit import Optimizer8bit

DEVICE = "cuda"
WIDTH, BATCH = 1024, 256

with_torchao = pytest.mark.skipif(
    importlib.util.find_spec("torchao") is None, reason="torchao is not installed: pip install '.[torchao]'"
)
from_torchao = pytest.mark.filterwarnings("ignore")


class Stage:
    """What levers see, without a session."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        self.torch, self.device, self.same_random = torch, torch.device(DEVICE), False
        self._model, self._optimizer = model, optimizer

    def roots(self) -> list[Any]:
        return [self._model]

    def optimizers(self) -> list[Any]:
        return [self._optimizer]

    def is_on(self, _name: str) -> Any:
        return None


@pytest.fixture(autouse=True)
def from_nothing() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def job(**settings: Any) -> tuple[Any, Any, Any]:
    model = nn.Sequential(
        nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.LayerNorm(WIDTH)
    ).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **settings)
    return model, optimizer, Stage(model, optimizer)


def train(call: Any, optimizer: Any, steps: int) -> list[float]:
    generator = torch.Generator(DEVICE).manual_seed(3)
    x = torch.randn(BATCH, WIDTH, device=DEVICE, generator=generator)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(call(x), x.flip(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def as_written(steps: int) -> list[float]:
    model, optimizer, _ = job()
    return train(model, optimizer, steps)


@pytest.mark.parametrize("settings", [{}, {"fused": True}])
@pytest.mark.parametrize("compiled", [False, True])
def test_bf16_parameters_take_half_the_memory_and_learn(settings: dict[str, Any], compiled: bool) -> None:
    expected = as_written(33)
    model, optimizer, stage = job(**settings)
    losses = train(model, optimizer, 3)
    held = sum(v.nbytes for state in optimizer.state.values() for v in state.values() if v.dim())
    lever = Bf16Parameters(stage, {})
    lever.apply()
    assert 2 * sum(v.nbytes for s in optimizer.state.values() for v in s.values() if v.dim()) == held
    call = Compile(stage, {"mode": "default"}).around(model, model._call_impl) if compiled else model
    losses += train(lever.around(model, call), optimizer, 20)
    lever.undo()
    losses += train(model, optimizer, 10)
    assert losses == pytest.approx(expected, rel=0.1)
    assert {one.dtype for one in model.parameters()} == {torch.float32}


@with_torchao
@from_torchao
@pytest.mark.timeout(300)
def test_averages_in_8_bits_take_a_quarter_of_the_memory_and_learn() -> None:
    expected = as_written(20)
    model, optimizer, stage = job()
    lever = Optimizer8bit(stage, {})
    lever.apply()
    losses = train(model, optimizer, 10)
    assert not lever.useless
    average = optimizer.state[model[0].weight]["exp_avg"]
    assert average.codes.nbytes * 4 == model[0].weight.nbytes
    assert average.scale.nbytes < average.codes.nbytes / 50
    lever.undo()
    losses += train(model, optimizer, 10)
    assert losses == pytest.approx(expected, rel=0.1)


@with_torchao
@from_torchao
@pytest.mark.timeout(300)
@pytest.mark.parametrize("rows", [BATCH, BATCH - 7])
def test_products_in_float8_are_really_that(rows: int) -> None:
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("float8 came with compute capability 8.9")
    model, optimizer, stage = job()
    x = torch.randn(rows, WIDTH, device=DEVICE)
    lever = Fp8(stage, {})
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        expected = model(x)
        lever.apply()
        with torch.profiler.profile() as profile:
            got = model(x)
            got.float().square().mean().backward()
    assert "aten::_scaled_mm" in {event.key for event in profile.key_averages()}
    assert float((got - expected).float().norm() / expected.float().norm()) < 0.1

    def under_autocast(*args: Any) -> Any:
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            return compiled(*args).float()

    compiled = Compile(stage, {"mode": "default"}).around(model, model._call_impl)
    losses = train(under_autocast, optimizer, 20)
    assert losses == pytest.approx(as_written(20), rel=0.15)
    lever.undo()
    assert type(model[0]) is nn.Linear
    train(model, optimizer, 2)


def test_fp16_is_for_cards_without_bf16() -> None:
    model, optimizer, stage = job()
    lever = Fp16(stage, {})
    if torch.cuda.get_device_capability() >= (8, 0):
        with pytest.raises(Refused, match="bf16 does the same without scaling"):
            lever.apply()
    lever.scaling.start([optimizer])  # what it does is the same on every card
    losses = train(lever.around(model, model), optimizer, 20)
    lever.undo()
    losses += train(model, optimizer, 5)
    assert losses == pytest.approx(as_written(25 + lever.scaling.skipped)[: len(losses)], rel=0.1)
