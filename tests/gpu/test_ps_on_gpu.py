"""A real process that holds GPU memory is listed with it, and `stop` gets it back."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.detached import Detached, lives, until
from tests.e2e.conftest import Run, flatout

__all__ = ["flatout"]  # the fixture

GIB = 1 << 30
HOLDS = """
import sys, time
import torch
held = torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
held.fill_(1)
torch.cuda.synchronize()
note("main")
x = torch.randn(4096, 4096, device="cuda")
while True:
    if sys.argv[1] == "busy":
        (x @ x).sum().item()
    else:
        time.sleep(0.1)
"""


@pytest.fixture(params=["busy", "idle"])
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Detached]:
    made = Detached.python(tmp_path / "a", HOLDS, request.param)
    made.noted("main")
    yield made
    made.end()


def listed(flatout: Run, pid: int) -> dict[str, Any] | None:
    document = json.loads(flatout("ps", "--json").stdout)
    found = [one for device in document["devices"] for one in device["processes"] or () if one["pid"] == pid]
    return found[0] if found else None


def test_a_job_is_listed_with_its_memory_and_stop_gets_it_back(
    flatout: Run, job: Detached, request: pytest.FixtureRequest
) -> None:
    wanted = "running" if "busy" in request.node.name else "idle"
    # Activity is what the driver saw in its last seconds: the job has just begun.
    found = until(lambda: (one := listed(flatout, job.pid)) and one["state"] in (wanted, "unknown") and one)
    assert found["memory_bytes"] > 2 * GIB
    assert found["job_pid"] == job.pid
    assert found["user"]
    if found["state"] == "unknown":
        assert found["state_reason"], "a driver that does not tell is a reason, not a guess"

    done = flatout("stop", str(job.pid), "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["ended"] is True
    back = [one for one in document["devices"] if one["held_before_bytes"]]
    assert back[0]["held_before_bytes"] > 2 * GIB
    assert back[0]["held_after_bytes"] == 0
    assert back[0]["used_before_bytes"] - back[0]["used_after_bytes"] > 2 * GIB
    assert not lives(job.pid)
    assert listed(flatout, job.pid) is None
