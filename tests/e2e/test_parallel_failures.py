"""A rank that fails, or does not come: the others end in time, and say who it was."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys, time
import torch
from torch import nn
import flatout

how = sys.argv[1]
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with flatout.parallel("ddp", model=model, optimizer=optimizer, timeout_s=60) as world:
    for step in range(3):
        world.model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        if world.rank == 1 and step == 1:
            if how == "raises":
                raise ValueError("a planted mistake")
            if how == "sleeps":
                time.sleep(600)
        if how == "raises":
            try:
                world.barrier()
            except Exception as error:
                print("rank 0 heard:", error, flush=True)
                raise
        elif step == 1:
            world.barrier(timeout_s=2)
"""


def run(folder: Path, how: str) -> subprocess.CompletedProcess[str]:
    script = folder / "train.py"
    script.write_text(SCRIPT)
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script, how],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


@pytest.mark.full
def test_a_rank_that_raises_is_named_by_the_others_and_by_torchrun(tmp_path: Path) -> None:
    done = run(tmp_path, "raises")
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert "rank 0 heard: rank 1 failed: ValueError: a planted mistake" in said
    # torchrun's own summary has the traceback of the culprit.
    summary = said[said.index("Root Cause") :]
    assert "ValueError: a planted mistake" in summary
    assert "rank      : 1" in summary


@pytest.mark.full
def test_nobody_waits_for_a_rank_that_sleeps(tmp_path: Path) -> None:
    """It sleeps for longer than anybody here waits."""
    done = run(tmp_path, "sleeps")
    assert done.returncode != 0
    assert "rank 1 did not come to the barrier within 2 s" in done.stderr
