"""What became of the last step's gradients, in loops that nobody else watches."""

import importlib
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from flatout.inside.gradients_left import GradientWatch  # noqa: E402


def watched(between: Callable[[torch.optim.Optimizer], None], optimizers: int = 1) -> GradientWatch:
    model = torch.nn.Linear(4, 2)
    made = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(optimizers)]
    watch = GradientWatch(torch)
    watch.install()
    try:
        for _ in range(6):
            for optimizer in made:
                between(optimizer)
                model(torch.ones(3, 4)).sum().backward()
                optimizer.step()
    finally:
        watch.remove()
    return watch


def test_gradients_that_nobody_touches_are_kept() -> None:
    assert watched(lambda _optimizer: None).found() == "kept"


def test_zeros_and_nothing_are_told_apart() -> None:
    assert watched(lambda optimizer: optimizer.zero_grad(set_to_none=False)).found() == "zeroed"
    assert watched(lambda optimizer: optimizer.zero_grad()).found() == "none"


def test_of_several_optimizers_nothing_is_said() -> None:
    watch = watched(lambda _optimizer: None, optimizers=2)
    assert watch.found() is None
    assert "several" in watch.reason


def test_everything_is_put_back() -> None:
    engine = torch.autograd._engine_run_backward
    watched(lambda _optimizer: None)
    assert torch.autograd._engine_run_backward is engine
    assert not importlib.import_module("torch.optim.optimizer")._global_optimizer_post_hooks
