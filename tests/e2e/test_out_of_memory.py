"""A job that runs out of memory: what is said of it, and with what it would be started once more."""

import json
from pathlib import Path

import pytest

from flatout.memory.autopsy import autopsy, restart_with
from flatout.records.plan import Choice, Fingerprint, Plan
from flatout.runtime.command import job_command
from flatout.runtime.profiling import ProfileRequest
from flatout.tune.running import plan_after
from tests.e2e.conftest import Run
from tests.e2e.test_fit import BLOCKS
from tests.pages import parsed

MIB = 1 << 20
ENDS = """
import torch

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
"""


def test_a_job_that_runs_out_says_so_and_ends_as_it_would(flatout: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ENDS)
    done = flatout("run", "--as-written", "train.py")
    assert done.returncode == 1
    assert "out of memory: more was asked for after 5 updates" in done.stderr
    [path] = (tmp_path / ".flatout" / "runs").glob("*/autopsy.json")
    autopsy = json.loads(path.read_text())
    assert autopsy["found"]["updates"] == 5
    assert autopsy["snapshot"] is None
    page = tmp_path / autopsy["report"]
    assert f"the picture: {autopsy['report']}" in done.stderr
    assert "Out of memory: more was asked for after 5 updates" in parsed(page.read_text()).text
    assert "out of memory: more was asked for" in flatout("report", path.parent.name).stdout


@pytest.mark.full
def test_a_job_that_fails_otherwise_has_no_autopsy(flatout: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ENDS.replace("torch.OutOfMemoryError", "ValueError"))
    done = flatout("run", "--as-written", "train.py")
    assert done.returncode == 1
    assert "memory" not in done.stderr.replace("CUDA out of memory. Tried", "")


@pytest.mark.full
def test_what_a_gpu_noted_leads_to_levers_that_make_it_fit(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(BLOCKS)
    rank = tmp_path / "run" / "job" / "ranks" / "0-1"
    rank.mkdir(parents=True)
    noted = {
        "message": "33554432 bytes were asked for",
        "on_gpu": True,
        "asked_bytes": 32 * MIB,
        "device_bytes": 1700 * MIB,
        "free_bytes": 10 * MIB,
        "allocated_bytes": 1100 * MIB,
        "reserved_bytes": 1300 * MIB,
        "cached_bytes": 200 * MIB,
        "largest_cached_bytes": 20 * MIB,
        "parts": {"activations": 1000 * MIB, "parameters": 100 * MIB},
        "updates": 0,
        "phase": "forward",
        "stacks_kept": False,
    }
    (rank / "out-of-memory.json").write_text(json.dumps(noted))
    (rank / "out-of-memory.pickle").write_bytes(b"torch's own")
    request = ProfileRequest(command=job_command([str(script)]))

    found = autopsy(request, "a run", tmp_path / "run" / "job", lambda *_: None)

    assert found is not None
    assert found.others_bytes == (1700 - 10 - 1300) * MIB
    assert round(found.fragmented_share, 2) == 0.15
    assert found.snapshot == str(rank / "out-of-memory.pickle")
    assert "lines of what was asked for since are not known" in found.notes[0]
    way = restart_with(found)
    assert way is not None
    assert way.fits
    assert not way.changes_training
    plan = plan_after(Plan(job=Fingerprint(script="train.py", script_sha256="")), found)
    assert plan is not None
    # Another precision would need a proof; the same computed again does not.
    assert {choice.id for choice in plan.levers} == {"block-checkpointing"}
    has_them = Plan(job=plan.job, levers=tuple(Choice(id=one.id) for one in plan.levers))
    assert plan_after(has_them, found) is None
