"""`flatout.Update`: bad updates leave no trace, good ones are what they would be without it."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import flatout
from flatout.records.errors import CallerMistake, UnknownName
from flatout.runtime.finite import gradients
from flatout.runtime.finite.ledger import Answer

NAN, INF = math.nan, math.inf
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    "fused AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, fused=True),
    "AdamW, one by one": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, foreach=False),
    "SGD with momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    "fused SGD with momentum": lambda parameters: torch.optim.SGD(
        parameters, lr=0.01, momentum=0.9, fused=True
    ),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.01),
}


class Training:
    def __init__(self, make: Callable[[Any], Any] = OPTIMIZERS["AdamW"], dtype: torch.dtype = torch.float32):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
        self.model.to(dtype)
        self.dtype = dtype
        self.optimizer = make(self.model.parameters())

    def loss(self, step: int = 0) -> Any:
        made = torch.Generator().manual_seed(step)
        return self.model(torch.randn(6, 4, generator=made).to(self.dtype)).pow(2).mean()

    def state(self) -> Any:
        return copy.deepcopy([self.model.state_dict(), self.optimizer.state_dict()])


def same(a: Any, b: Any) -> bool:
    """Bit for bit."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(one, other) for one, other in zip(a, b, strict=True))
    return bool(a == b)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_skipped_update_leaves_parameters_and_states_bit_for_bit(name: str, bad: float) -> None:
    training = Training(OPTIMIZERS[name])
    update = flatout.Update(training.model, training.optimizer)
    for step in range(3):
        training.loss(step).backward()
        update.step()
    before = training.state()
    training.loss(3).backward()
    training.model[2].weight.grad[1, 1] = bad
    update.step()
    assert update.counts.skipped == 1, "the fault did not fire"
    assert same(training.state(), before)
    assert all(one.grad is None for one in training.model.parameters())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_first_update_that_is_skipped_leaves_no_trace(name: str) -> None:
    """torch's fused SGD would go on with a momentum that nobody filled."""
    training, plain = Training(OPTIMIZERS[name]), Training(OPTIMIZERS[name])
    update = flatout.Update(training.model, training.optimizer)
    (training.loss() * NAN).backward()
    update.step()
    assert update.counts.skipped == 1
    for step in range(3):
        training.loss(step).backward()
        update.step()
        plain.loss(step).backward()
        plain.optimizer.step()
        plain.optimizer.zero_grad()
    assert same(training.model.state_dict(), plain.model.state_dict())


@pytest.mark.parametrize("clip", [None, 0.05])
def test_good_updates_are_what_they_would_be_by_hand(clip: float | None) -> None:
    training, plain = Training(), Training()
    update = flatout.Update(training.model, training.optimizer, clip_norm=clip)
    for step in range(4):
        training.loss(step).backward()
        update.step()
        plain.loss(step).backward()
        if clip is not None:
            norm = nn.utils.clip_grad_norm_(plain.model.parameters(), clip)
            assert norm > clip
            assert torch.equal(norm, update.gradient_norm)
        plain.optimizer.step()
        plain.optimizer.zero_grad()
    assert update.counts.made == 4
    assert same(training.state(), plain.state())


def test_an_infinite_gradient_of_a_finite_loss_is_skipped_and_the_scale_backs_off() -> None:
    training = Training()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    update = flatout.Update(training.model, training.optimizer, scaler=scaler, clip_norm=1.0)
    before = training.state()
    loss = training.loss()
    scaler.scale(loss).backward()
    training.model[0].weight.grad[0, 0] = INF
    assert math.isfinite(loss.item())
    update.step(loss)
    assert update.counts.skipped == 1
    assert same(training.state(), before)
    assert scaler.get_scale() == 512.0
    for step in range(2):  # and grows again: update() runs each time
        loss = training.loss(step)
        scaler.scale(loss).backward()
        update.step(loss)
    assert update.counts.made == 2
    assert scaler.get_scale() == 1024.0
    assert update.counts.loss_scale == 512.0


@pytest.mark.parametrize("name", ["AdamW", "fused AdamW", "fused SGD with momentum"])
def test_with_a_scaler_gradients_are_clipped_after_they_are_unscaled(name: str) -> None:
    training, plain = Training(OPTIMIZERS[name]), Training(OPTIMIZERS[name])
    scaler, other = (torch.amp.GradScaler("cpu", init_scale=1024.0) for _ in range(2))
    update = flatout.Update(training.model, training.optimizer, scaler=scaler, clip_norm=0.05)
    for step in range(3):
        scaler.scale(training.loss(step)).backward()
        update.step()
        other.scale(plain.loss(step)).backward()
        other.unscale_(plain.optimizer)
        nn.utils.clip_grad_norm_(plain.model.parameters(), 0.05)
        other.step(plain.optimizer)
        other.update()
        plain.optimizer.zero_grad()
    assert same(training.state(), plain.state())


def test_a_scaler_that_is_switched_off_is_no_scaler() -> None:
    training = Training()
    update = flatout.Update(training.model, training.optimizer, scaler=torch.amp.GradScaler(enabled=False))
    (training.loss() * INF).backward()
    update.step()
    assert (update.counts.skipped, update.counts.loss_scale) == (1, None)


def test_scheduler_average_and_counters_go_with_the_optimizer() -> None:
    training = Training()
    scheduler = torch.optim.lr_scheduler.StepLR(training.optimizer, 1, 0.9)
    average = torch.optim.swa_utils.AveragedModel(training.model)
    update = flatout.Update(training.model, training.optimizer, scheduler=scheduler, ema=average)
    for step in range(6):
        loss = training.loss(step) * (NAN if step in (0, 3) else 1.0)
        loss.backward()
        update.step(loss)
    assert (update.counts.made, update.counts.skipped) == (4, 2)
    assert scheduler.last_epoch == 4
    assert int(average.n_averaged) == 4
    assert training.optimizer.state[training.model[0].weight]["step"] == 4


def test_a_bad_part_of_an_accumulated_batch_costs_that_update_alone() -> None:
    training = Training()
    update = flatout.Update(training.model, training.optimizer)
    for step in range(4):
        for part in range(2):
            scale = NAN if (step, part) == (1, 0) else 0.5
            (training.loss(2 * step + part) * scale).backward()
        update.step()
    assert (update.counts.made, update.counts.skipped) == (3, 1)


def test_of_two_optimizers_only_the_bad_one_is_skipped() -> None:
    generator, critic = Training(), Training()
    updates = [flatout.Update(one.model, one.optimizer) for one in (generator, critic)]
    before = critic.state(), generator.state()
    generator.loss().backward()
    (critic.loss() * NAN).backward()
    for update in updates:
        update.step()
    assert [update.counts.skipped for update in updates] == [0, 1]
    assert same(critic.state(), before[0])
    assert not same(generator.state(), before[1])


def test_two_optimizers_share_a_scaler() -> None:
    one, other = Training(), Training()
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    first = flatout.Update(one.model, one.optimizer, scaler=scaler, update_scaler=False)
    last = flatout.Update(other.model, other.optimizer, scaler=scaler)
    scaler.scale(one.loss()).backward()
    scaler.scale(other.loss() * INF).backward()
    first.step()
    last.step()
    assert (first.counts.skipped, last.counts.skipped) == (0, 1)
    assert scaler.get_scale() == 32.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.float16])
def test_parameters_of_other_precisions(dtype: torch.dtype) -> None:
    training = Training(dtype=dtype)
    update = flatout.Update(training.model, training.optimizer, clip_norm=1e6)
    training.loss().backward()
    training.model[4].weight.grad.fill_(6e4)  # finite, though its square is more than half precision holds
    update.step()
    assert update.counts.made == 1
    training.model[4].weight.data.fill_(0.1)
    training.loss().backward()
    training.model[0].bias.grad[0] = INF
    update.step()
    assert update.counts.skipped == 1


def test_large_gradients_that_are_finite_are_made() -> None:
    training = Training(OPTIMIZERS["RMSprop"])
    update = flatout.Update(training.model, training.optimizer)
    training.loss().backward()
    training.model[0].weight.grad.fill_(1e30)  # its square is not finite
    update.step()
    assert (update.counts.made, update.counts.skipped) == (1, 0)


def test_gradients_of_all_kinds_at_once() -> None:
    """Sparse, complex, of two precisions, empty, shared, and none at all."""
    embedding = nn.Embedding(10, 4, sparse=True)
    rest = [
        nn.Parameter(torch.ones(3, dtype=torch.complex64)),
        nn.Parameter(torch.ones(3, dtype=torch.bfloat16)),
        nn.Parameter(torch.ones(3, dtype=torch.float64)),
        nn.Parameter(torch.ones(0)),
        nn.Parameter(torch.ones(2), requires_grad=False),
        nn.Parameter(torch.ones(2)),
    ]
    optimizer = torch.optim.SGD([embedding.weight, *rest], lr=0.1)
    update = flatout.Update(embedding, optimizer, clip_norm=1.0)

    def backward() -> None:
        embedding(torch.tensor([1, 1, 3])).sum().backward()
        for one in rest[:4]:
            (one.abs().sum() * 2).backward()

    backward()
    update.step()
    assert update.counts.made == 1
    assert update.gradient_norm > 1.0
    for poisoned in (embedding.weight, *rest[:3]):
        before = copy.deepcopy([one.data for one in (embedding.weight, *rest)])
        backward()
        grad = poisoned.grad
        assert grad is not None
        (grad._values() if grad.is_sparse else grad)[-1] = NAN
        update.step()
        assert same([one.data for one in (embedding.weight, *rest)], before)
    assert update.counts.skipped == 4


def test_a_step_without_any_gradient_is_an_update() -> None:
    training = Training()
    update = flatout.Update(training.model, training.optimizer, clip_norm=1.0)
    update.step()
    assert update.counts.made == 1


@pytest.mark.parametrize("at", [1, 3])
@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs_is_put_back_whichever_evaluation_is_bad(at: int, search: str | None) -> None:
    training = Training(lambda parameters: torch.optim.LBFGS(parameters, lr=0.5, line_search_fn=search))
    update = flatout.Update(training.model, training.optimizer)
    evaluations = 0

    def closure() -> Any:
        nonlocal evaluations
        evaluations += 1
        training.optimizer.zero_grad()
        loss = training.loss() * (NAN if bad and evaluations >= at else 1.0)
        loss.backward()
        return loss

    bad = False
    first = update.step(closure=closure)
    assert evaluations > 3
    before, bad, evaluations = training.state(), True, 0
    update.step(closure=closure)
    assert evaluations >= at
    assert update.counts.skipped == 1
    assert same(training.state(), before)
    bad = False
    assert update.step(closure=closure) < first
    assert update.counts.made == 2


def test_a_closure_of_another_optimizer_is_skipped_too() -> None:
    training = Training()
    update = flatout.Update(training.model, training.optimizer)
    before = training.state()

    def closure() -> Any:
        loss = training.loss() * NAN
        loss.backward()
        return loss

    update.step(closure=closure)
    assert update.counts.skipped == 1
    assert same(training.state(), before)


def test_so_many_in_a_row_stop_with_a_diagnosis(capfd: pytest.CaptureFixture[str]) -> None:
    training = Training()
    update = flatout.Update(training.model, training.optimizer, patience=3)
    losses = []

    def train() -> None:
        for step in range(10):
            loss = training.loss(step)
            loss.backward()
            if step in (1, 4, 5, 6):
                training.model[2].weight.grad[0, 0] = NAN
                training.model[0].bias.grad[:] = INF
            losses.append(loss.item())
            update.step(loss)

    with pytest.raises(flatout.NotFinite) as raised:
        train()
    found = raised.value.diagnosis
    assert (found.update, found.in_a_row, len(losses)) == (5, 3, 7)
    assert found.parameters == ("0.bias", "2.weight")
    assert (found.not_finite, found.with_gradients) == (2, 6)
    assert found.arose_at == "2.weight"
    assert found.loss_is_finite is True
    assert found.last_finite_loss == pytest.approx(losses[-1])
    assert found.values_not_finite == ()
    assert raised.value.exit_code == 4
    assert "2.weight" in str(raised.value)
    told = capfd.readouterr().err
    assert "update 2 is skipped: gradients of 2 of 6 parameters are not finite, loss" in told
    assert "update 6 is skipped" in told
    assert "2 in a row" in told


def test_a_diagnosis_says_when_parameters_themselves_are_not_finite() -> None:
    training = Training()
    update = flatout.Update(training.model, training.optimizer, on_nan="stop")
    training.model[4].bias.data[0] = INF
    loss = training.loss()
    loss.backward()
    with pytest.raises(flatout.NotFinite) as raised:
        update.step(loss)
    assert raised.value.diagnosis.values_not_finite == ("4.bias",)
    assert raised.value.diagnosis.loss_is_finite is False
    assert "older checkpoint" in raised.value.remedy


def test_a_scaler_that_looks_for_its_scale_is_no_reason_to_stop() -> None:
    training = Training()
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
    update = flatout.Update(training.model, training.optimizer, scaler=scaler, on_nan="stop", patience=5)

    def train() -> None:
        for step in range(10):
            loss = training.loss(step)
            scaler.scale(loss).backward()
            if step != 2:
                training.model[0].bias.grad[0] = INF
            update.step(loss)

    with pytest.raises(flatout.NotFinite) as raised:
        train()
    assert raised.value.diagnosis.in_a_row == 5
    assert raised.value.diagnosis.loss_scales[-5:] == (16384, 8192, 4096, 2048, 1024)
    other = flatout.Update(training.model, training.optimizer, scaler=scaler, on_nan="stop")
    loss = training.loss() * NAN
    scaler.scale(loss).backward()
    with pytest.raises(flatout.NotFinite):
        other.step(loss)


def test_settings_that_cannot_be() -> None:
    training = Training()
    both = training.model, training.optimizer
    with pytest.raises(UnknownName, match="skip, stop, rollback"):
        flatout.Update(*both, on_nan="ignore")  # type: ignore[arg-type]
    with pytest.raises(CallerMistake, match="patience=0"):
        flatout.Update(*both, patience=0)
    with pytest.raises(CallerMistake, match="clip_norm=0"):
        flatout.Update(*both, clip_norm=0)
    with pytest.raises(CallerMistake, match="without model, optimizer"):
        flatout.Update(*both, on_nan="rollback")
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(training.optimizer)
    with pytest.raises(CallerMistake, match="ReduceLROnPlateau"):
        flatout.Update(*both, scheduler=plateau)
    with pytest.raises(CallerMistake, match="closure"):
        flatout.Update(*both, clip_norm=1.0).step(closure=lambda: None)


class OnAGpu:
    """A tensor of another device than the flag's: what is on its way to the host must not be read there."""

    def __mul__(self, _number: float) -> "OnAGpu":
        return self

    def detach(self) -> "OnAGpu":
        return self

    def reshape(self, _size: int) -> "OnAGpu":
        return self

    def to(self, device: torch.device, *, non_blocking: bool = False) -> torch.Tensor:
        return torch.tensor([NAN if non_blocking and device.type == "cpu" else 0.0])


def test_the_host_waits_for_what_comes_from_a_gpu_before_it_reads_it() -> None:
    host, away = torch.zeros(()), OnAGpu()
    assert gradients._marks(torch, [away], host.device).tolist() == [0.0]
    look = gradients.Look(host, (), torch.zeros(0), (away,))
    assert gradients.total_norm(torch, look).item() == 0.0
    outcome = Answer(torch, host, away, None, None).read(1, "", let_through=False)
    assert outcome.loss == 0.0


def test_who_has_no_objections_says_so_on_the_device_of_the_gradients() -> None:
    parameters = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, device="meta"))]
    parameters[1].grad = torch.ones(2, device="meta")
    found = gradients.nothing_found(torch, parameters)
    assert {found.flag.device.type, found.marks.device.type} == {"meta"}
    assert not gradients.nothing_found(torch, parameters[:1]).flag
