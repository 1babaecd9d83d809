"""`flatout run --on-nan`, from inside: every kind of update that a script may make, in a real session."""

import copy
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from flatout.inside.session import Session
from flatout.records.finite import NOT_FINITE_FILE
from flatout.records.session import Order
from flatout.runtime.finite.guest import FiniteUpdates
from flatout.runtime.finite.stopped import not_finite_in

NAN, INF = math.nan, math.inf


class Watched:
    def __init__(self, folder: Path, **order: Any) -> None:
        self.session = Session(torch, Order(folder=str(folder), **{"on_nan": "skip", "patience": 3, **order}))
        self.session.arm()
        self.guest = FiniteUpdates(self.session)
        self.guest.install()

    def counts(self) -> dict[str, Any]:
        self.guest.close()
        found: dict[str, Any] = self.session.facts["finite_updates"]
        return found

    def leave(self) -> None:
        self.guest.remove()
        self.session.finish()
        self.session.disarm()


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    made = Watched(tmp_path)
    yield made
    made.leave()


def network(optimizer: Any = torch.optim.AdamW, **settings: Any) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    return model, optimizer(model.parameters(), **{"lr": 0.01, **settings})


def loss_of(model: nn.Module, factor: float = 1.0) -> Any:
    return model(torch.randn(6, 4)).pow(2).mean() * factor


def weights(*models: nn.Module) -> list[torch.Tensor]:
    return [one.detach().clone() for model in models for one in model.parameters()]


def equal(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


@pytest.mark.parametrize("is_scaled", [False, True])
def test_statistics_are_as_before_the_batch_that_was_left_out(watched: Watched, is_scaled: bool) -> None:
    model, optimizer = network()
    model.append(nn.BatchNorm1d(1))
    scaler = torch.amp.GradScaler("cpu", enabled=is_scaled)
    means = []
    for step in range(5):
        values = torch.randn(6, 4)
        if step == 3:
            values[0, 0] = NAN
        optimizer.zero_grad()
        scaler.scale((model(values) - 1).pow(2).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        means.append(model[3].running_mean.clone())
    assert watched.counts()["skipped"] == 1
    assert torch.equal(means[2], means[3])
    assert bool(torch.stack(means).isfinite().all())
    assert not torch.equal(means[3], means[4])


@pytest.mark.parametrize("settings", [{}, {"fused": True}, {"foreach": False}])
def test_a_bad_update_is_left_out_and_the_next_is_made(watched: Watched, settings: dict[str, Any]) -> None:
    model, optimizer = network(**settings)
    for step in range(4):
        before, states = weights(model), copy.deepcopy(optimizer.state_dict()["state"])
        optimizer.zero_grad()
        loss_of(model, NAN if step == 2 else 1.0).backward()
        optimizer.step()
        if step == 2:
            after = optimizer.state_dict()["state"]
            assert equal(weights(model), before)
            assert all(
                torch.equal(states[key][name], after[key][name]) for key in states for name in states[key]
            )
        else:
            assert not equal(weights(model), before)
        assert "found_inf" not in vars(optimizer)
    assert (watched.counts()["made"], watched.counts()["skipped"]) == (3, 1)


def test_an_optimizer_that_clears_its_gradients_itself_does_not_keep_the_bad_ones(watched: Watched) -> None:
    class Clearing(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            super().step(closure)  # a step within a step is one update
            for group in self.param_groups:
                for one in group["params"]:
                    one.grad = None if one.grad is None or one.grad.any() else one.grad

    model, optimizer = network(Clearing)
    for step in range(3):
        loss_of(model, NAN if step == 0 else 1.0).backward()
        optimizer.step()
    assert (watched.counts()["made"], watched.counts()["skipped"]) == (2, 1)
    assert all(one.isfinite().all() for one in model.parameters())


def test_closures_and_lbfgs(watched: Watched) -> None:
    for make, settings in ((torch.optim.SGD, {}), (torch.optim.LBFGS, {"line_search_fn": "strong_wolfe"})):
        model, optimizer = network(make, **settings)
        data = torch.randn(6, 4)
        for step in range(3):

            def closure(
                bad: bool = step == 1, model: Any = model, optimizer: Any = optimizer, data: Any = data
            ) -> Any:
                optimizer.zero_grad()
                loss = model(data).pow(2).mean() * (NAN if bad else 1.0)
                loss.backward()
                return loss

            before = weights(model)
            optimizer.step(closure)
            assert equal(weights(model), before) == (step == 1)
    assert (watched.counts()["made"], watched.counts()["skipped"]) == (4, 2)


def test_a_scalers_updates_are_left_to_it_and_counted(watched: Watched) -> None:
    for settings in ({}, {"fused": True}):
        model, optimizer = network(**settings)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for step in range(3):
            optimizer.zero_grad()
            scaler.scale(loss_of(model)).backward()
            if step == 1:
                model[0].weight.grad[0, 0] = INF
            before = weights(model)
            scaler.step(optimizer)
            scaler.update()
            assert equal(weights(model), before) == (step == 1)
        assert scaler.get_scale() == 512.0
    found = watched.counts()
    assert (found["made"], found["skipped"], found["loss_scale"]) == (4, 2, 512.0)


def test_of_two_optimizers_only_the_bad_one_is_left_out(watched: Watched) -> None:
    (one, first), (other, second) = network(), network()
    for step in range(3):
        before = weights(one), weights(other)
        for model, optimizer, factor in ((one, first, 1.0), (other, second, INF if step == 1 else 1.0)):
            optimizer.zero_grad()
            loss_of(model, factor).backward()
            optimizer.step()
        assert not equal(weights(one), before[0])
        assert equal(weights(other), before[1]) == (step == 1)
    assert (watched.counts()["made"], watched.counts()["skipped"]) == (5, 1)


def test_a_step_that_raises_leaves_nothing_behind(watched: Watched) -> None:
    model, optimizer = network(fused=True)
    loss_of(model).backward()
    real, optimizer.state = optimizer.state, None
    with pytest.raises(TypeError):
        optimizer.step()
    optimizer.state = real
    optimizer.step()
    assert "found_inf" not in vars(optimizer)


def test_so_many_in_a_row_end_the_job_with_a_diagnosis(watched: Watched, tmp_path: Path) -> None:
    model, optimizer = network()
    made = 0

    def train() -> None:
        nonlocal made
        for step in range(20):
            optimizer.zero_grad()
            loss = loss_of(model)
            loss.backward()
            if step >= 5:
                model[2].bias.grad[0] = INF
            try:
                optimizer.step()
            except Exception:  # noqa: BLE001 - as scripts do
                pytest.fail("a script that goes on after any exception would go on")
            made += 1

    with pytest.raises(SystemExit) as ended:
        train()
    assert (ended.value.code, made) == (4, 7)
    [path] = tmp_path.glob(f"ranks/*/{NOT_FINITE_FILE}")
    assert json.loads(path.read_text())["update"] == 6
    found = not_finite_in(tmp_path)
    assert found is not None
    assert (found.in_a_row, found.parameters, found.loss_is_finite) == (3, ("2.bias",), True)
    assert all(one.isfinite().all() for one in model.parameters())
    path.write_text('{"update": 6')  # a process that was killed in the middle
    assert not_finite_in(tmp_path) is None


def test_stop_ends_at_the_first_but_lets_a_scaler_look_for_its_scale(tmp_path: Path) -> None:
    watched = Watched(tmp_path, on_nan="stop")
    try:
        model, optimizer = network()
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for is_good in (False, False, True):
            optimizer.zero_grad()
            scaler.scale(loss_of(model)).backward()
            if not is_good:
                model[0].weight.grad[0, 0] = INF
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()
        loss_of(model, NAN).backward()
        with pytest.raises(SystemExit):
            optimizer.step()
        found = not_finite_in(tmp_path)
        assert found is not None
        assert (found.update, found.in_a_row, found.loss_is_finite) == (4, 1, False)
        assert found.loss_scales == (1024.0, 512.0, 256.0)
    finally:
        watched.leave()


def test_everything_is_put_back(tmp_path: Path) -> None:
    seen = torch.autograd._engine_run_backward, torch.amp.GradScaler.step, torch.amp.GradScaler.scale
    Watched(tmp_path).leave()
    assert (
        torch.autograd._engine_run_backward,
        torch.amp.GradScaler.step,
        torch.amp.GradScaler.scale,
    ) == seen
