"""How much of the activations compiled code keeps for the backward pass."""

import importlib
from typing import Any

from flatout.levers.job import JobFacts
from flatout.levers.lever import Lever, Refused, Settings


class ActivationBudget(Lever):
    """Compiled code keeps a part of its activations, and computes the rest again.

    The compiler knows what each operation costs, and chooses what to compute again so that the least time is
    lost (`activation_memory_budget`). 1 is what it keeps anyhow, 0 the inputs alone. Works on compiled code,
    and so together with `compile`; only tried where the goal is less memory.
    """

    id = "activation-budget"
    title = "activation budget"
    safety = "memory"
    reorders = True
    # Has no place of its own around the call, but what was compiled without it must not be called.
    layer = 11
    needs = ("compile",)

    @classmethod
    def check(cls, job: JobFacts) -> str:
        """A script that compiles itself has been compiled before we come."""
        return "the script compiles itself" if job.habit("compiles") else ""

    @classmethod
    def variants(cls, job: JobFacts) -> tuple[Settings, ...]:
        """What saves most first: the other one where that costs too much time."""
        return {"budget": 0.2}, {"budget": 0.5}

    @classmethod
    def predict(cls, job: JobFacts, settings: Settings) -> float:
        """A part of the forward pass once more."""
        return 0.9

    def apply(self) -> None:
        """For whatever is compiled from here on."""
        config = _config()
        if config is None:
            raise Refused("this torch has no budget for activations")
        self._found = config.activation_memory_budget
        if self._found != 1.0:
            raise Refused(f"the script sets it itself, to {self._found}")
        config.activation_memory_budget = float(self.settings["budget"])

    def undo(self) -> None:
        """As it was."""
        config = _config()
        if config is not None:
            config.activation_memory_budget = self._found


def _config() -> Any:
    config = importlib.import_module("torch._functorch.config")
    return config if hasattr(config, "activation_memory_budget") else None
