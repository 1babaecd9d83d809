"""Two real ranks, one of them slow: the others wait, and are not blamed for it."""

from pathlib import Path

import pytest

from tests.e2e.jobs import document, place_in

pytest.importorskip("torch")

SLOW_RANK = """
import sys, time, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.set_num_threads(1)
model = DistributedDataParallel(nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(60):
    if dist.get_rank() == 1:
        time.sleep(0.03)
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""


@pytest.mark.full
def test_the_rank_that_the_others_wait_for_is_named(tmp_path: Path) -> None:
    with place_in(tmp_path) as place:
        place.script(SLOW_RANK)
        own_files = place.home / "tmp"  # torchrun's, which are the job's own business
        own_files.mkdir()
        words = ("run", "--json", "--as-written", "--nproc-per-node", "2", "train.py")
        done = place.flatout(*words, TMPDIR=str(own_files))
        found = document(done)
        assert done.returncode == 0, done.stderr
        assert (found["straggler"]["rank"], found["straggler"]["part"]) == (1, "other")
        assert found["straggler"]["ms"] >= 30
        assert [one["rank"] for one in found["ranks"]] == [0, 1]
        # Both take the same time for a step: one of them in its backward pass.
        own = [{share["part"]: share["ms"] for share in one["parts"]} for one in found["ranks"]]
        assert own[0]["backward"] > own[1]["backward"] + 20
        shown = place.flatout("report", "latest").stdout
        assert "rank 1 takes" in shown
