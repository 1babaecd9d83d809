"""The optimizer's fused implementation."""

from typing import Any

from flatout.levers.job import JobFacts, amdahl
from flatout.levers.lever import Lever, Settings

_NAMES = ("fused", "foreach")


class FusedOptimizer(Lever):
    """The fused implementation of the script's own optimizer (Adam, AdamW, SGD, Adagrad).

    One kernel reads each parameter once and writes it once, instead of one kernel for each operation. The
    same formula, in another order of rounding. Refused where the script chose an implementation itself.
    """

    id = "fused-optimizer"
    title = "fused optimizer"
    safety = "numeric"

    @classmethod
    def check(cls, job: JobFacts) -> str:
        """At least one optimizer must have a fused implementation that the script has not asked for."""
        optimizers = job.habit("optimizers", ())
        if not optimizers:
            return "no optimizer was seen"
        if not any(one["supports_fused"] for one in optimizers):
            return f"{optimizers[0]['name']} has no fused implementation"
        if all(one["fused"] for one in optimizers):
            return "the script uses it already"
        if any(one["foreach"] is not None or one["fused"] is False for one in optimizers):
            return "the script chose an implementation itself"
        return ""

    @classmethod
    def predict(cls, job: JobFacts, settings: Settings) -> float:
        """The optimizer's share, at three times its speed."""
        return amdahl((job.device_shares or job.host_shares).get("optimizer", 0.0), 3.0)

    def apply(self) -> None:
        """Switch every optimizer over, with its state."""
        self._found: list[tuple[Any, list[dict[str, Any]], dict[str, Any]]] = []
        for optimizer in self.scene.optimizers():
            self.on_optimizer(optimizer)

    def on_optimizer(self, optimizer: Any) -> None:
        """Switch one over, where it can be."""
        if not supports_fused(optimizer):
            return
        groups = [{name: group.get(name) for name in _NAMES} for group in optimizer.param_groups]
        if any(group["fused"] is not None or group["foreach"] is not None for group in groups):
            return
        marks = {
            name: vars(optimizer).get(name)
            for name in ("_step_supports_amp_scaling", "_need_device_dtype_check_for_fused")
        }
        self._found.append((optimizer, groups, marks))
        for group in optimizer.param_groups:
            group["fused"], group["foreach"] = True, False
        optimizer._need_device_dtype_check_for_fused = True  # noqa: SLF001
        optimizer._step_supports_amp_scaling = True  # noqa: SLF001
        self._move_counters(optimizer, to_device=True)

    def undo(self) -> None:
        """Switch back, with the state."""
        for optimizer, groups, marks in self._found:
            for group, found in zip(optimizer.param_groups, groups, strict=False):
                group.update(found)
            for name, value in marks.items():
                if value is None:
                    vars(optimizer).pop(name, None)
                else:
                    setattr(optimizer, name, value)
            self._move_counters(optimizer, to_device=False)
        self._found = []

    def _move_counters(self, optimizer: Any, *, to_device: bool) -> None:
        """The fused kernel counts steps on the device, the others on the host."""
        for parameter, state in optimizer.state.items():
            step = state.get("step")
            if step is not None and hasattr(step, "device"):
                state["step"] = step.to(parameter.device if to_device else "cpu", copy=True)


def supports_fused(optimizer: Any) -> bool:
    """Whether its class, or one of torch's that it inherits its step from, has a fused implementation."""
    if "fused" not in optimizer.defaults:
        return False
    kind = type(optimizer)
    owner = next((one for one in kind.__mro__ if "step" in vars(one)), kind)
    if not owner.__module__.startswith("torch.optim."):
        return False
    groups = optimizer.param_groups
    if any(group.get("differentiable") or group.get("capturable") for group in groups):
        return False
    parameters = [parameter for group in groups for parameter in group["params"]]
    return bool(parameters) and all(
        parameter.is_floating_point() and not parameter.is_sparse for parameter in parameters
    )
