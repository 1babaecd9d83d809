"""A check: an identity that never changes, and a function from a machine to results."""

import dataclasses
import inspect
from collections.abc import Callable, Iterable

from flatout.records.device import Device
from flatout.records.machine import CheckResult, CheckStatus, Machine


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a check found; the check's identity is added by `run_check`."""

    status: CheckStatus
    evidence: str
    fix: str = ""
    device: Device | None = None


CheckFunction = Callable[[Machine], Iterable[Outcome]]


@dataclasses.dataclass(frozen=True)
class Check:
    """One check. Its page in the docs is made from the function's docstring."""

    id: str
    look: CheckFunction

    @property
    def explanation(self) -> str:
        """What it sees, why it matters and what to do."""
        return inspect.getdoc(self.look) or ""


def run_check(check: Check, machine: Machine) -> list[CheckResult]:
    """The results of one check. A check that breaks says so, and the others go on."""
    try:
        outcomes = list(check.look(machine))
    except Exception as error:  # noqa: BLE001 - a defect of ours must not hide what the others see
        outcomes = [Outcome("unknown", f"this check broke: {type(error).__name__}: {error}")]
    return [
        CheckResult(
            id=check.id,
            status=outcome.status,
            evidence=outcome.evidence,
            fix=outcome.fix,
            device_index=outcome.device.index if outcome.device else None,
        )
        for outcome in outcomes
    ]
