"""The memory tap: what the job holds, at step boundaries, and what its parts are.

Counters are read, never reset: the script's own `reset_peak_memory_stats` must find what it expects. Reading
them is slow on a busy host, so it happens at the first steps, then about every sixteenth, later about every
128th.
"""

import os
import resource
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flatout.inside.session import Session

_FIRST = 3
_EVERY = 16
_EARLY = 256
_LATER = 128
_PAGE = os.sysconf("SC_PAGE_SIZE")
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


class MemoryTap:
    """Adds memory figures to some of the steps."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        # What was held after which update: of the device where there is one, else of the host.
        self.points: list[tuple[int, int]] = []
        self._looked_at = 0

    def install(self) -> None:
        """Nothing to patch: the session asks at step boundaries."""

    def remove(self) -> None:
        """Nothing to put back."""

    def is_due(self, update: int) -> bool:
        """Whether this update is one to look at."""
        every = _EVERY if update <= _EARLY else _LATER
        return update <= _FIRST or update // every > self._looked_at // every

    def look(self) -> dict[str, int | None]:
        """What is held now."""
        self._looked_at = self._session.updates
        found: dict[str, int | None] = {
            "host_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT,
            "host_bytes": host_bytes(),
        }
        if self._session.on_gpu:
            found |= self._on_device()
        held = found.get("allocated_bytes", found["host_bytes"])
        if held is not None:
            self.points.append((self._session.updates, held))
        return found

    def _on_device(self) -> dict[str, int | None]:
        stats = self._session.torch.cuda.memory_stats_as_nested_dict(self._session.device)
        allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
        return {
            "allocated_bytes": allocated["current"],
            "allocated_peak_bytes": allocated["peak"],
            "reserved_bytes": reserved["current"],
            "reserved_peak_bytes": reserved["peak"],
            "allocation_retries": stats["num_alloc_retries"],
        }


def host_bytes() -> int | None:
    """Resident memory of this process, or None where the kernel does not tell."""
    try:
        file = os.open("/proc/self/statm", os.O_RDONLY)  # a pathlib.Path would cost four times as much
        try:
            return int(os.read(file, 100).split()[1]) * _PAGE
        finally:
            os.close(file)
    except (OSError, ValueError, IndexError):
        return None


def held_by(optimizers: list[Any], torch: Any, roots: list[Any]) -> dict[str, int]:
    """Bytes of parameters, gradients and optimizer state, and the number of parameters.

    The parameters are those that are optimized; where nothing is, those of the models that are called.
    """
    found = {"parameters": 0, "trainable_parameters": 0, "parameter_bytes": 0, "gradient_bytes": 0}
    found["optimizer_bytes"] = 0
    optimized = [
        one for optimizer in optimizers for group in optimizer.param_groups for one in group["params"]
    ]
    called = [parameter for root in roots for parameter in root.parameters()]
    for parameter in {id(one): one for one in optimized or called}.values():
        found["parameters"] += parameter.numel()
        found["trainable_parameters"] += parameter.numel() * bool(parameter.requires_grad)
        found["parameter_bytes"] += _bytes(parameter)
        if parameter.grad is not None:
            found["gradient_bytes"] += _bytes(parameter.grad)
    for optimizer in optimizers:
        for state in optimizer.state.values():
            found["optimizer_bytes"] += sum(_bytes(v) for v in state.values() if torch.is_tensor(v))
    return found


def _bytes(tensor: Any) -> int:
    return int(tensor.numel()) * int(tensor.element_size())
