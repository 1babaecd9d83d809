"""Levers of a plan, checked once more where the job runs: it may be another device or script now.

What can be seen before the first training call is looked at, and each lever's own check decides. What only a
measured baseline shows (waits, retries, kernels that were timed) is taken as it was when the plan was made.
"""

from typing import TYPE_CHECKING, Any

from flatout.inside.habits import HabitsTap, compiles
from flatout.levers.attention_kernels import OWN_CHOICE
from flatout.levers.job import JobFacts
from flatout.levers.lever import Lever, Settings

if TYPE_CHECKING:
    from flatout.inside.session import Session

_SHARES = {"input_wait": 1.0, "copies": 1.0, "optimizer": 1.0}
_MEASURED: dict[str, Any] = {
    "operators": ("aten._softmax", "aten.scaled_dot_product_attention"),
    "attention_ms": {OWN_CHOICE: 2.0, "another": 1.0},
    "batch_uses": {"copied": True},
    "collector_share": 1.0,
    "allocation_retries": 1,
    "keeps_gradients": True,
}
# Whose check needs what is known after some updates alone; they refuse by themselves when they come on.
_LATER = ("thread-affinity",)


class CheckedAgain:
    """What there is to know of the job at the first training call of a model, asked for once.

    `graphs` is how many the script had compiled before any lever was on: later ones are ours as well.
    """

    def __init__(
        self, session: "Session", roots: list[Any], optimizers: list[Any], device: Any, graphs: int | None
    ) -> None:
        torch = session.torch
        # A script may try its model out first: levers of optimizers are told when one is made.
        self._lacks_optimizers = not optimizers
        habits = {**HabitsTap(session).describe(roots, optimizers), "compiles": compiles(roots, graphs)}
        if torch.is_autocast_enabled(device.type):
            habits["autocast"] = str(torch.get_autocast_dtype(device.type)).removeprefix("torch.")
        self._job = JobFacts(
            device=str(device),
            capability=torch.cuda.get_device_capability(device) if device.type == "cuda" else None,
            host_shares=_SHARES,
            habits={**habits, **_MEASURED},
            loaders=({"num_workers": 1},),
            ranks=session.rank_and_world_size()[1],
        )

    def refusal(self, kind: type[Lever], settings: Settings) -> str:
        """Why the lever does not hold here, or not with these settings; empty where it does."""
        if kind.id in _LATER or (self._lacks_optimizers and kind.on_optimizer is not Lever.on_optimizer):
            return ""
        return kind.check(self._job) or kind.check_settings(self._job, settings)
