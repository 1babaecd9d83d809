"""When a keeper is killed, its job's main process dies with it, and the rest is found and ended."""

import os
import signal
from collections.abc import Callable

import psutil
import pytest

from flatout.records.session import KEEPER_VARIABLE
from flatout.runtime.job import keeper_value
from flatout.runtime.processes import end_job_of
from tests.fakes.processes import sleeping, wait_until_gone
from tests.unit.runtime.house import (
    MARK,
    WAIT_S,
    House,
    Kept,
    Who,
    run_as,
    shield_refusal,
    shielding,
    wait_for,
)

Keep = Callable[..., Kept]

# A main process, and a daemon of its that nothing but its environment tells from others.
JOB = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open(os.environ["HOUSE"] + "/run/pid", "w") as pid: print(os.getpid(), file=pid)
        time.sleep(600)
    os._exit(0)
time.sleep(600)
"""


@pytest.mark.parametrize("shielded", [False, True], ids=["plain", "shielded"])
def test_nothing_outlives_a_keeper_that_was_killed(
    keep: Keep, who: Who, house: House, shielded: bool
) -> None:
    if shielded and (refusal := shield_refusal(who)):
        pytest.skip(f"this machine allows no overlay: {refusal}")
    kept = keep(who, house, JOB, shield=shielding(house) if shielded else None)
    if shielded:
        kept.shielded()
    main = kept.event("started")["pid"]
    daemon = int(wait_for(house.run / "pid"))
    os.kill(kept.pid, signal.SIGKILL)
    kept.process.wait(WAIT_S)
    assert wait_until_gone(main), "the main process dies with the keeper"
    assert psutil.pid_exists(daemon), "the daemon does not"
    assert _ended_as(who, kept.pid) == [daemon]
    assert wait_until_gone(daemon)


def _ended_as(who: Who, keeper: int) -> list[int]:
    """What the user himself ends, who may not look into the processes of others."""
    code = f"from flatout.runtime.processes import end_job_of; print(*end_job_of({keeper}, {MARK!r}))"
    return [int(word) for word in run_as(who, code).split()]


def test_only_the_job_with_this_keeper_and_mark_is_ended() -> None:
    values = [keeper_value(os.getpid(), mark) for mark in ("mark", "mark2", "")] + ["", "other"]
    environments = [{**os.environ, KEEPER_VARIABLE: value} for value in values]
    # The text alone, in another variable, is not enough.
    environments.append({**os.environ, "OTHER": f"{KEEPER_VARIABLE}={values[0]}"})
    children = [sleeping(**environment) for environment in environments]
    try:
        assert end_job_of(os.getpid(), "mark") == [children[0].pid]
        assert children[0].wait(WAIT_S) == -signal.SIGKILL
        assert [child.poll() for child in children[1:]] == [None] * (len(children) - 1)
    finally:
        for child in children:
            child.kill()
            child.wait(WAIT_S)


def test_where_there_is_no_such_job_nothing_happens() -> None:
    assert end_job_of(os.getpid(), "no-such-mark") == []
