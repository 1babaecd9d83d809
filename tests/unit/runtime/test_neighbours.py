"""Whoever measures on a busy machine is told."""

import os
import subprocess
import sys

import pytest

from flatout.runtime.neighbours import cores_of_others
from tests.profiles import profile


def test_a_process_at_work_is_seen_and_our_own_is_not() -> None:
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            found = cores_of_others(1.0)
        finally:
            busy.kill()
    assert found is not None
    # On a machine with much to do it gets less than a core; nobody gets more than there are.
    assert 0.3 < found <= own


def test_a_machine_that_does_not_tell_is_nobodys_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(percpu: bool = False) -> None:
        raise PermissionError("/proc/stat")

    monkeypatch.setattr("psutil.cpu_times", refused)
    assert cores_of_others(0.01) is None


@pytest.mark.parametrize(
    ("others", "cores", "is_told"),
    [(None, 2, False), (0.1, 2, False), (0.5, 2, True), (2.0, 16, False), (5.0, 16, True), (0.3, 1, False)],
)
def test_it_is_told_where_it_matters(others: float | None, cores: int, is_told: bool) -> None:
    told = profile(others_cores=others, cores=cores).disturbance
    assert bool(told) is is_told
    if is_told:
        assert f"{others:.1f} of {cores} cores" in told
