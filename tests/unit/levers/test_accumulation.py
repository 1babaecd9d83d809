"""CUDA graphs end where gradients are added up over several calls, before any is overwritten."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from flatout.inside.updates import Updates  # noqa: E402
from flatout.levers.accumulation import Accumulation  # noqa: E402
from flatout.levers.lever import Broken  # noqa: E402


class Loop:
    """A loop around a model whose calls are watched."""

    def __init__(self, *, zeroes_late: bool = False) -> None:
        self.model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))
        self.unused = self.model.register_parameter("unused", torch.nn.Parameter(torch.ones(2)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.call = Accumulation(self.model, self.model)
        self.zeroes_late = zeroes_late
        self.updates = 0

    def zero(self, late: bool) -> None:
        if late == self.zeroes_late:
            self.optimizer.zero_grad()

    def loss(self) -> Any:
        return self.call(torch.ones(2, 3)).mean()

    def update(self) -> None:
        self.optimizer.step()
        self.call.updated(self.optimizer)
        self.updates += 1


@pytest.mark.parametrize("zeroes_late", [False, True])
def test_one_backward_pass_an_update_is_none(zeroes_late: bool) -> None:
    loop = Loop(zeroes_late=zeroes_late)
    for _ in range(4):
        loop.zero(late=False)
        loss = loop.loss()
        loop.zero(late=True)
        loss.backward()
        loop.update()
    assert loop.updates == 4


@pytest.mark.parametrize("zeroes_late", [False, True])
def test_two_calls_for_one_backward_pass_add_nothing_up(zeroes_late: bool) -> None:
    loop = Loop(zeroes_late=zeroes_late)
    for _ in range(4):
        loop.zero(late=False)
        loss = loop.loss() + loop.loss()
        loop.zero(late=True)
        loss.backward()
        loop.update()
    assert loop.updates == 4


def test_the_second_call_of_two_that_are_added_up_is_refused() -> None:
    loop = Loop()
    for _ in range(3):
        loop.zero(late=False)
        loop.loss().backward()
        loop.update()
    loop.zero(late=False)
    loop.loss().backward()
    with pytest.raises(Broken, match="added up over several calls"):
        loop.loss()


def test_an_update_that_was_left_out_is_none() -> None:
    loop = Loop()
    loop.loss().backward()
    loop.optimizer.zero_grad()
    loss = loop.loss()  # Broken, were it one
    loss.backward()
    assert loss.isfinite()


def test_an_update_that_a_scaler_leaves_out_is_over_all_the_same() -> None:
    loop, scaler = Loop(), torch.amp.GradScaler("cpu", init_scale=2.0**127)
    as_found = torch.amp.GradScaler.step
    updates = Updates(torch, loop.call.updated)
    skipped = 0
    for _ in range(4):
        loss = loop.call(100 * torch.ones(2, 3)).square().sum()
        loop.optimizer.zero_grad()
        scaler.scale(loss).backward()
        scale = scaler.get_scale()
        scaler.step(loop.optimizer)
        scaler.update()
        skipped += scaler.get_scale() < scale
    updates.end()
    assert skipped > 1
    assert torch.amp.GradScaler.step is as_found


def test_an_update_of_something_else_ends_nothing() -> None:
    """As of a temperature or an entropy model, which has an optimizer of its own."""
    loop = Loop()
    other = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    loop.loss().backward()
    loop.call.updated(other)
    with pytest.raises(Broken, match="added up over several calls"):
        loop.loss()
    other.add_param_group({"params": list(loop.model.parameters())})
    loop.call.updated(other)
    loop.loss()
