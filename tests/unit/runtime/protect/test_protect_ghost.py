"""A loop that is run again: models are void, metrics count."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from flatout.runtime.protect.ghost import Ghost  # noqa: E402


class Mean(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def update(self, _value: Any) -> None:
        self.count += 1

    def compute(self) -> int:
        return self.count

    def reset(self) -> None:
        self.count = 0

    def forward(self, value: Any) -> Any:
        self.update(value)
        return value


class Model(Mean):
    """Called like a metric, and is none: it learns."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))


def test_metrics_are_called_each_time_and_models_once() -> None:
    mean, model = Mean(), Model()
    ghost = Ghost(torch, list)
    ghost.install()
    try:
        for _ in range(3):
            mean(torch.zeros(2))
            model(torch.zeros(2))
    finally:
        ghost.end()
    assert (mean.count, model.count) == (3, 1)


def test_a_step_that_is_called_by_way_of_a_wrapped_model_is_run_each_time() -> None:
    model, steps = Model(), []

    def wrapped_forward(number: int) -> Any:
        del model.forward  # as Lightning does: from here on, the model's own is called
        steps.append(number)
        return model(torch.zeros(2))

    wrapper = torch.nn.Module()
    wrapper.module = model
    ghost = Ghost(torch, list)
    ghost.install()
    try:
        for number in range(3):
            model.forward = wrapped_forward
            wrapper(number)
    finally:
        ghost.end()
    assert (steps, model.count) == ([0, 1, 2], 1)


@pytest.mark.parametrize("how", ["grad", "backward"])
def test_whoever_traces_a_pass_backward_gets_the_real_one(how: str) -> None:
    weight = torch.ones(3, requires_grad=True)
    ghost = Ghost(torch, list)
    ghost.install()
    try:
        void = torch.autograd.grad((weight * 2).sum(), weight)[0]
        context = torch._guards.TracingContext(torch._subclasses.FakeTensorMode())
        with torch._guards.tracing(context):
            if how == "grad":
                real = torch.autograd.grad((weight * 2).sum(), weight)[0]
            else:
                (weight * 2).sum().backward()
                real = weight.grad
    finally:
        ghost.end()
    assert void.tolist() == [0, 0, 0]
    assert real.tolist() == [2, 2, 2]
