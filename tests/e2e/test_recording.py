"""Steps under torch's profiler at the end of a profile: files for other tools, lines, floors, memory."""

import json
from pathlib import Path
from typing import Any

import pytest

from flatout.records.plan import Choice, Fingerprint, Plan
from tests.e2e.conftest import Run
from tests.e2e.jobs import ENDLESS, QUICK

PROFILES_ITSELF = (
    QUICK
    + """
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
    while True:
        update()
"""
)
BREAKS_UNDER_A_PROFILER = (
    QUICK
    + """
while True:
    if torch.autograd._profiler_enabled():
        raise RuntimeError("no profilers here")
    update()
"""
)


DIES_UNDER_A_PROFILER = (
    QUICK
    + """
import os, signal
while True:
    if torch.autograd._profiler_enabled():
        os.kill(os.getpid(), signal.SIGSEGV)
    update()
"""
)


# As Lightning trains: the update calls the model, inside of torch's own record of it.
IN_UPDATES = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.Adam(model.parameters())
def closure():
    optimizer.zero_grad()
    loss = model(torch.randn(256, 64)).square().mean()
    loss.backward()
    return loss
while True:
    optimizer.step(closure)
"""


def profiled(flatout: Run, folder: Path, script: str, *options: str) -> dict[str, Any]:
    """A profile of a script."""
    (folder / "train.py").write_text(script)
    done = flatout("profile", "--json", "--no-limits", "--steps", "20", *options, "train.py")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_some_steps_are_recorded_and_none_of_them_is_timed(flatout: Run, tmp_path: Path) -> None:
    found = profiled(flatout, tmp_path, ENDLESS)
    assert found["updates"] == 20
    assert found["trial"]["signal"] is None
    trace = found["trace"]
    assert trace["steps"] == 3
    assert any(one["name"] == "aten::addmm" for one in trace["operators"])
    [module] = trace["modules"]
    assert module["name"] == "Linear"
    assert module["forward_ms"] > 0
    assert module["backward_ms"] > 0
    names = sorted(path.name for path in tmp_path.glob(".flatout/runs/*/trials/*/ranks/*/rank0*"))
    assert names == ["rank0-details.pt.trace.json.gz", "rank0.pt.trace.json.gz"]
    assert found["memory_timeline"]
    [item] = [one for one in found["lines"] if one["operator"] == "aten::_local_scalar_dense"]
    assert Path(item["file"]).name == "train.py"
    source = (tmp_path / "train.py").read_text().splitlines()
    assert "loss.item()" in source[item["line"] - 1]
    assert (item["calls"], item["function"]) == (1, "update")


def test_nothing_is_recorded_where_nobody_wants_it(flatout: Run, tmp_path: Path) -> None:
    found = profiled(flatout, tmp_path, ENDLESS, "--no-trace")
    assert found["trace"] is None
    assert found["unknown"]["trace"] == "no step was recorded"
    assert not list(tmp_path.glob(".flatout/runs/*/trials/*/ranks/*/rank0*"))
    assert found["lines"]


def test_a_script_that_profiles_itself_is_left_alone(flatout: Run, tmp_path: Path) -> None:
    found = profiled(flatout, tmp_path, PROFILES_ITSELF)
    assert found["trace"] is None
    assert "profiles itself" in found["unknown"]["trace"]
    assert found["updates"] == 20


@pytest.mark.full
def test_updates_that_call_the_model_are_recorded_from_before_them(flatout: Run, tmp_path: Path) -> None:
    found = profiled(flatout, tmp_path, IN_UPDATES)
    assert found["updates"] == 20
    assert found["trial"]["signal"] is None
    assert found["trace"]["steps"] == 3
    assert any(one["name"] == "aten::addmm" for one in found["trace"]["operators"])
    [file] = tmp_path.rglob("rank0.pt.trace.json.gz")
    parts = json.loads(flatout("trace", "--json", str(file)).stdout)["waterfall"]
    shares = {one["part"]: one["share"] for one in parts}
    assert 0 < shares["optimizer"] < shares["host_compute"]


@pytest.mark.full
def test_a_script_that_dies_under_the_profiler_has_its_profile(flatout: Run, tmp_path: Path) -> None:
    found = profiled(flatout, tmp_path, DIES_UNDER_A_PROFILER)
    assert found["updates"] == 20
    assert found["trial"]["outcome"] == "stopped"
    assert found["trace"] is None
    assert "killed by signal 11 while torch's profiler recorded it" in found["unknown"]["trace"]
    assert found["mfu"]["flops_per_step"]


@pytest.mark.full
def test_a_script_that_breaks_under_the_profiler_has_its_profile(flatout: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BREAKS_UNDER_A_PROFILER)
    done = flatout("profile", "--json", "--no-limits", "--steps", "20", "train.py")
    found = json.loads(done.stdout)
    assert found["updates"] == 20
    assert found["trace"] is None


@pytest.mark.full
def test_a_job_is_profiled_with_the_levers_of_a_plan(flatout: Run, tmp_path: Path) -> None:
    job = Fingerprint(script="train.py", script_sha256="0", arguments=(), device="cpu", torch="", flatout="")
    Plan(job=job, levers=(Choice(id="garbage-collector"),)).write(tmp_path / "plan.toml")
    found = profiled(flatout, tmp_path, ENDLESS, "--plan", "plan.toml")
    assert found["updates"] == 20
    [session] = tmp_path.glob(".flatout/runs/*/trials/1-profile/ranks/*/session.json")
    assert json.loads(session.read_text())["levers"] == {"garbage-collector": {"applied": True}}
