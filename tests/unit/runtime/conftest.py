"""Fixtures of the runtime's tests: who runs a job, where, and the keepers that are gone afterwards."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from flatout.runtime.processes import end_job_of
from tests.unit.runtime.house import (
    NOBODY,
    SOURCE,
    WAIT_S,
    House,
    Kept,
    Who,
    house_in,
    make_job,
    python_of,
    shield_refusal,
)


@pytest.fixture(params=["root", "user"])
def who(request: pytest.FixtureRequest) -> Who:
    if request.param == "root":
        if os.getuid() != 0:
            pytest.skip("needs root")
        return Who(uid=0, gid=0, python=sys.executable)
    uid, gid = (NOBODY, NOBODY) if os.getuid() == 0 else (os.getuid(), os.getgid())
    python = python_of(uid)
    if python is None:
        pytest.skip(f"user {uid} cannot start a Python 3.11 that sees {SOURCE}")
    return Who(uid=uid, gid=gid, python=python)


@pytest.fixture
def myself() -> Who:
    return Who(uid=os.getuid(), gid=os.getgid(), python=sys.executable)


@pytest.fixture
def shield_user(who: Who) -> Who:
    """As `who`, where the kernel allows him a shield."""
    if refusal := shield_refusal(who):
        pytest.skip(f"this machine allows no overlay: {refusal}")
    return who


@pytest.fixture
def house(who: Who) -> Iterator[House]:
    # Below a folder of root's, and deeper than the folders of /.
    with house_in("/var/tmp", who) as made:
        yield made


@pytest.fixture
def tmp_house(who: Who) -> Iterator[House]:
    with house_in("/tmp", who) as made:
        yield made


def patient(grace_s: float) -> str:
    """A keeper that gives more time to what ends by itself: on a busy machine, a second may not do."""
    return (
        f"import sys, flatout.runtime.keeper as keeper; keeper._GRACE_S = {grace_s}; sys.exit(keeper.main())"
    )


@pytest.fixture
def keep() -> Iterator[Callable[..., Kept]]:
    """Starts keepers; whatever the test did, they and their jobs are gone afterwards."""
    started: list[Kept] = []

    def start(
        who: Who,
        house: House,
        command: Sequence[str] | str,
        *,
        wrapper: Sequence[str] = (),
        preexec: Callable[[], None] | None = None,
        grace_s: float | None = None,
        **changes: Any,
    ) -> Kept:
        job = make_job(who, house, command, **changes)
        switch = who.switches and not wrapper
        keeper = ["-m", "flatout.runtime.keeper"] if grace_s is None else ["-c", patient(grace_s)]
        process = subprocess.Popen(
            [*wrapper, who.python, "-P", *keeper],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Below the overlay, if the keeper failed to leave it.
            cwd=house.work,
            env={**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"},
            user=who.uid if switch else None,
            group=who.gid if switch else None,
            extra_groups=[] if switch else None,
            preexec_fn=preexec,  # noqa: PLW1509 -- the tests have one thread
        )
        kept = Kept(process, job)
        started.append(kept)
        assert process.stdin is not None
        process.stdin.write(job.line())
        process.stdin.flush()
        return kept

    yield start
    for kept in started:
        with kept.process as process:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
        end_job_of(kept.pid, kept.job.mark)
