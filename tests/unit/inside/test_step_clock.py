"""The step clock: one update is one step, however an optimizer's class is built."""

from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from flatout.inside.session import Session  # noqa: E402
from flatout.records.session import Order  # noqa: E402


class Calling(torch.optim.SGD):
    """Its step calls its parent's, and can fail."""

    broken = False

    def step(self, closure=None):
        super().step(closure)
        if self.broken:
            raise RuntimeError("planted")


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    session = Session(torch, Order(folder=str(tmp_path)))
    session.arm()
    yield session
    session.finish()
    session.disarm()
    assert not session.failed


@pytest.fixture
def parameters() -> list[torch.nn.Parameter]:
    parameters = [torch.nn.Parameter(torch.ones(3))]
    # Torch hooks the step of a class when its first optimizer is made: from here on both steps are hooked.
    torch.optim.SGD(parameters, lr=0.1)
    return parameters


def update(optimizer: torch.optim.Optimizer, times: int) -> None:
    for _ in range(times):
        for group in optimizer.param_groups:
            group["params"][0].sum().backward()
        optimizer.step()


def test_a_step_that_calls_its_parents_is_one_update(session: Session, parameters: list) -> None:
    update(Calling(parameters, lr=0.1), 6)
    assert session.updates == 6


def test_so_it_is_when_nobody_looks_closely(session: Session, parameters: list) -> None:
    optimizer = Calling(parameters, lr=0.1)
    update(optimizer, 3)
    session.updates, session.watching = 1000, False
    update(optimizer, 40)
    assert session.updates == 1040


@pytest.mark.parametrize("watching", [True, False])
def test_a_step_that_raised_is_not_taken_for_one_under_way(
    session: Session, parameters: list, watching: bool
) -> None:
    optimizer = Calling(parameters, lr=0.1)
    update(optimizer, 3)
    session.watching = watching
    optimizer.broken = True
    for _ in range(2):
        with pytest.raises(RuntimeError, match="planted"):
            optimizer.step()
    optimizer.broken = False
    update(optimizer, 4)
    assert session.updates == 7


def test_an_optimizer_inside_another_is_a_step_of_its_own(session: Session, parameters: list) -> None:
    class Around(torch.optim.Optimizer):
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            super().__init__(inner.param_groups, {})
            self.inner = inner

        def step(self, closure=None):
            self.inner.step(closure)

    update(Around(torch.optim.SGD(parameters, lr=0.1)), 5)
    assert session.updates == 5
