"""The document of `flatout check`: is a new script ready for its first real run?"""

import dataclasses
from typing import Any

from flatout.records.machine import CheckResult
from flatout.records.trial import Trial


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParameterState:
    """One parameter of the model, as the first updates left it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    device: str
    trainable: bool
    optimized: bool
    updates_with_gradient: int
    updates_with_zero_gradient: int
    updates_with_bad_gradient: int
    changed: bool | None
    learning_rate: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckReport:
    """Every check, and what it stands on."""

    run: str
    checks: tuple[CheckResult, ...]
    updates: int
    losses: tuple[float | None, ...]
    calls: tuple[dict[str, Any], ...]
    parameters: tuple[ParameterState, ...]
    trials: tuple[Trial, ...]
    next: str

    @property
    def failed(self) -> bool:
        """Whether anything is wrong enough to mend before a real run."""
        return any(check.status == "fail" for check in self.checks)
