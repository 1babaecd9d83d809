"""How an update is left out, so that parameters and states stay bit for bit as they were.

A fused optimizer takes the flag as it is, on the device, and its kernel does nothing: nobody waits. Every
other one has to be told by the host, which reads the flag: its gradients are hidden, and what has no gradient
no optimizer touches. An optimizer that evaluates its closure again and again (LBFGS) moves parameters between
two evaluations: it starts from copies, which are put back.
"""

import copy
from typing import Any

from flatout.levers.optimizer_states import wait_for_states
from flatout.runtime.finite.gradients import parameters_of


def is_fused(optimizer: Any) -> bool:
    """Whether its kernels take a flag by which they do nothing."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def takes_flag(optimizer: Any) -> bool:
    """Whether its next update can be left out by such a flag."""
    if not is_fused(optimizer):
        return False
    # torch's fused SGD keeps a momentum that nobody filled, where its very first update is left out.
    return not any(
        group.get("momentum") and "momentum_buffer" not in optimizer.state.get(parameter, {})
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None
    )


def moves_between_evaluations(torch: Any, optimizer: Any) -> bool:
    """Whether it changes parameters and then evaluates its closure once more, in one update."""
    return isinstance(optimizer, torch.optim.LBFGS)


class Flagged:
    """The flag is handed to the optimizer's own kernels for one update."""

    def __init__(self, optimizer: Any, flag: Any) -> None:
        self._optimizer = optimizer
        self._had = vars(optimizer).get("found_inf")
        optimizer.found_inf = flag
        self.is_on_gpu = flag.device.type != "cpu"

    def end(self) -> None:
        """Take it back."""
        if self._had is None:
            vars(self._optimizer).pop("found_inf", None)
        else:
            self._optimizer.found_inf = self._had


class Hidden:
    """An optimizer without gradients for one update; they come back as zeros."""

    def __init__(self, optimizer: Any) -> None:
        found = [(one, one.grad) for one in parameters_of(optimizer) if one.grad is not None]
        self._hidden = found
        for parameter, _ in found:
            parameter.grad = None

    def end(self) -> None:
        """Zeros: a script that adds to its gradients, or looks at them, finds nothing that spreads."""
        for parameter, gradient in self._hidden:
            if parameter.grad is None:
                parameter.grad = gradient.detach().zero_()
        self._hidden = []


class Copied:
    """Parameters and states as they were before an update that may have to be taken back."""

    def __init__(self, torch: Any, optimizer: Any) -> None:
        self._torch = torch
        self._optimizer = optimizer
        self._values = [(one, one.detach().clone()) for one in parameters_of(optimizer)]
        wait_for_states(optimizer)
        self._states = [
            (one, copy.deepcopy(optimizer.state[one]))
            for one in parameters_of(optimizer)
            if one in optimizer.state
        ]

    def put_back(self) -> None:
        """As before the update, whatever it has done."""
        with self._torch.no_grad():
            for parameter, value in self._values:
                parameter.copy_(value)
        self._optimizer.state.clear()
        self._optimizer.state.update(dict(self._states))
