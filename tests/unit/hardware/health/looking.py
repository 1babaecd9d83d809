"""How these tests look: one check by its id, on one machine."""

from flatout.hardware.health.catalogue import CHECKS
from flatout.hardware.health.check import run_check
from flatout.records.machine import CheckResult, Machine


def look(check_id: str, machine: Machine) -> list[CheckResult]:
    """All results of one check. A check that broke is a failure of the test, not an "unknown"."""
    (check,) = [known for known in CHECKS if known.id == check_id]
    results = run_check(check, machine)
    assert not any(result.evidence.startswith("this check broke") for result in results), results
    return results


def only(check_id: str, machine: Machine) -> CheckResult:
    """The one result of a check."""
    (result,) = look(check_id, machine)
    assert result.id == check_id
    return result
