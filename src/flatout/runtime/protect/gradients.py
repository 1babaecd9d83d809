"""Gradients that still wait for their optimizer: a save may fall between the steps of two.

Those of the optimizer that has just stepped are used up. On the way back all gradients are there, and are
nothing: what another optimizer steps on next must be what it was.
"""

from typing import Any

from flatout.runtime.finite.gradients import parameters_of


def waiting(optimizers: list[Any], stepped: Any) -> dict[str, Any]:
    """By optimizer and parameter: the gradient, or that there is none."""
    return {
        name: None if parameter.grad is None else local_part(parameter.grad).detach()
        for name, parameter in _parameters(optimizers, stepped)
    }


def put_back(optimizers: list[Any], saved: dict[str, Any]) -> None:
    """In the place of those that stand there for nothing."""
    for name, parameter in _parameters(optimizers, None):
        if name not in saved:
            continue
        value = saved[name]
        if value is None:
            parameter.grad = None
            continue
        if parameter.grad is None:
            parameter.grad = parameter.detach().clone()
        local_part(parameter.grad).copy_(value)


def _parameters(optimizers: list[Any], but: Any) -> list[tuple[str, Any]]:
    return [
        (f"{at}.{number}", parameter)
        for at, optimizer in enumerate(optimizers)
        if optimizer is not but
        for number, parameter in enumerate(parameters_of(optimizer))
    ]


def local_part(tensor: Any) -> Any:
    """Of what is spread over ranks, the part that is here."""
    return tensor.tolocal_part() if hasattr(tensor, "to_local") else tensor
