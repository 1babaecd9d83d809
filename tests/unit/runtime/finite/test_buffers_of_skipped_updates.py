"""What a forward pass writes into buffers does not outlive the update that was skipped for it."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import flatout
from flatout.runtime.checkpoint.store import checkpoints
from flatout.runtime.finite.buffers import Buffers

NAN, INF = math.nan, math.inf


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))


def batch(bad: bool = False) -> torch.Tensor:
    made = torch.randn(16, 4)
    if bad:
        made[0, 0] = NAN
    return made


def buffers(model: nn.Module) -> list[torch.Tensor]:
    return [one.clone() for one in model.buffers()]


def equal(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return all(torch.equal(*both) for both in zip(some, others, strict=True))


def step(model: nn.Module, update: Any, *, bad: bool = False) -> None:
    loss = model(batch(bad)).pow(2).mean()
    loss.backward()
    update.step(loss)


@pytest.mark.parametrize("fused", [False, True])
def test_statistics_are_as_before_the_batch_that_was_skipped(fused: bool) -> None:
    model = network()
    update = flatout.Update(model, torch.optim.Adam(model.parameters(), fused=fused))
    for _ in range(3):
        step(model, update)
    before = buffers(model)
    step(model, update, bad=True)
    after = buffers(model)
    assert update.counts.skipped == 1
    assert equal(before[:2], after[:2])
    step(model, update)
    assert not equal(before[:2], buffers(model)[:2])


def test_the_very_first_batch_may_be_the_bad_one() -> None:
    model = network()
    update = flatout.Update(model, torch.optim.SGD(model.parameters()))
    before = buffers(model)
    step(model, update, bad=True)
    assert equal(before[:2], buffers(model)[:2])


def test_statistics_that_are_finite_stay_although_the_update_is_skipped() -> None:
    model = network()
    update = flatout.Update(model, torch.optim.SGD(model.parameters()))
    before = buffers(model)
    loss = model(batch()).pow(2).mean() * NAN
    loss.backward()
    update.step(loss)
    assert update.counts.skipped == 1
    assert not equal(before[:2], buffers(model)[:2])


class Counting(nn.Module):
    """Makes its buffer anew in each pass, and has one that is infinite for good."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)
        self.again = again
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("mask", torch.tensor([0.0, -INF]))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        mean = 0.9 * self.mean + 0.1 * values.detach().mean(0)
        if self.again:
            self.mean = mean
        else:
            self.mean.copy_(mean)
        return self.linear(values - self.mean)


@pytest.mark.parametrize("again", [False, True])
def test_buffers_of_any_module_are_followed_once_they_change(again: bool) -> None:
    model = Counting(again)
    update = flatout.Update(model, torch.optim.SGD(model.parameters()))
    for _ in range(4):
        step(model, update)
    before = buffers(model)
    step(model, update, bad=True)
    assert equal(before, buffers(model))


def test_what_never_changes_is_not_copied() -> None:
    model = Counting(again=False)
    followed = Buffers(torch, lambda: [model])
    for _ in range(5):
        model(batch())
        followed.updated(torch.zeros(()))
    assert [name for group in followed._groups for _, name in group.places] == ["mean"]


def test_a_state_that_was_loaded_after_all_is_not_overwritten_by_what_was_there_before() -> None:
    model, other = network(), network()
    other[1].running_mean.fill_(3.0)  # type: ignore[union-attr,operator]
    update = flatout.Update(model, torch.optim.SGD(model.parameters()))
    model.load_state_dict(other.state_dict())
    step(model, update, bad=True)
    assert not torch.equal(model[1].running_mean, torch.zeros(8))  # type: ignore[arg-type]


def test_after_resuming_what_was_loaded_is_what_it_was_before(tmp_path: Path) -> None:
    first = network()
    with flatout.Checkpointer(tmp_path, model=first) as checkpointer:
        first(batch())
        checkpointer.save(1)
    model = network()
    with flatout.Checkpointer(tmp_path, model=model) as checkpointer:
        update = flatout.Update(model, torch.optim.SGD(model.parameters()), checkpointer=checkpointer)
        checkpointer.resume()
        step(model, update, bad=True)
    assert equal(buffers(first)[:2], buffers(model)[:2])


def test_another_models_update_in_between_keeps_nothing_that_is_spoiled() -> None:
    model = network()
    followed = Buffers(torch, lambda: [model])
    model(batch())
    before = buffers(model)
    followed.updated(torch.zeros(()))
    model(batch(bad=True))
    followed.updated(torch.zeros(()))  # of an optimizer whose gradients were fine
    followed.updated(torch.ones(()))
    assert equal(before[:2], buffers(model)[:2])


def test_no_checkpoint_has_buffers_that_are_not_finite(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    parts = {"model": model, "optimizer": optimizer}
    with flatout.Checkpointer(tmp_path, every=1, **parts) as checkpointer:
        update = flatout.Update(model, optimizer, checkpointer=checkpointer, on_nan="rollback", patience=3)
        for at in range(1, 9):
            step(model, update, bad=at == 4)
            checkpointer.step(at)
        assert update.counts.rollbacks == 0
    again = network()
    with flatout.Checkpointer(tmp_path, model=again) as checkpointer:
        assert checkpointer.resume() == 8
    assert all(bool(one.isfinite().all()) for one in again.buffers())
    assert bool(again.eval()(batch()).isfinite().all())


@pytest.mark.parametrize("value", [NAN, INF])
def test_statistics_that_nobody_saw_being_spoiled_are_never_saved(
    tmp_path: Path, value: float, capfd: pytest.CaptureFixture[str]
) -> None:
    model = network()
    model.register_buffer("mask", torch.tensor([0.0, -INF]))
    model.register_buffer("unused", torch.full((2,), NAN))
    with flatout.Checkpointer(tmp_path, every=1, model=model) as checkpointer:
        update = flatout.Update(model, torch.optim.SGD(model.parameters()), checkpointer=checkpointer)
        step(model, update)
        checkpointer.step(1)
        model[1].running_var.fill_(value)  # type: ignore[union-attr,operator]
        checkpointer.step(2)
        assert "step 2 is not saved: buffers are not finite" in capfd.readouterr().err
        with pytest.raises(flatout.NotFinite) as raised:
            step(model, update)
        assert raised.value.diagnosis.values_not_finite == ("1.running_var",)
    assert [one.step for one in checkpoints(tmp_path)] == [1]


class Average:
    """One of the caller's own."""

    def __init__(self, model: nn.Module) -> None:
        self.weights = copy.deepcopy(model.state_dict())

    def update_parameters(self, model: nn.Module) -> None:
        """Follow."""

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights = state["weights"]


@pytest.mark.parametrize("make", [torch.optim.swa_utils.AveragedModel, Average])
def test_an_average_that_is_not_finite_is_never_saved(
    tmp_path: Path, make: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    model = network()
    ema = make(model)
    optimizer = torch.optim.SGD(model.parameters())
    with flatout.Checkpointer(tmp_path, every=1, model=model, ema=ema) as checkpointer:
        update = flatout.Update(model, optimizer, ema=ema, checkpointer=checkpointer)
        step(model, update)
        checkpointer.step(1)
        weights = next(ema.parameters()) if isinstance(ema, nn.Module) else ema.weights["0.weight"]
        weights.data[0, 0] = NAN
        checkpointer.step(2)
        assert "step 2 is not saved: the average of the weights is not finite" in capfd.readouterr().err
    assert [one.step for one in checkpoints(tmp_path)] == [1]
