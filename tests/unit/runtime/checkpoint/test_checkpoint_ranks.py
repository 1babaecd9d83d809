"""Ranks save together, and others load what they saved: as many, more, fewer, or one process alone."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flatout.runtime.checkpoint.store import checkpoints, verify

SCRIPT = """
import json, os, signal, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
import flatout

folder, how, steps, stop = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]
torch.set_num_threads(1)
ranks = int(os.environ.get("WORLD_SIZE", 1))
if ranks > 1:
    dist.init_process_group("gloo")
rank = dist.get_rank() if ranks > 1 else 0
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 5), nn.Linear(5, 1))
if ranks > 1 and how == "fsdp":
    from torch.distributed.fsdp import fully_shard
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
elif ranks > 1:
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
data = TensorDataset(torch.randn(64, 8, generator=torch.Generator().manual_seed(5)))
sampler = DistributedSampler(data, num_replicas=ranks, rank=rank, shuffle=True, seed=2)
loader = DataLoader(data, batch_size=16 // ranks, sampler=sampler)
losses = {}
parts = {"model": getattr(model, "module", model), "optimizer": optimizer, "loader": loader}
try:
    with flatout.Checkpointer(folder, every=3, **parts) as checkpointer:
        step = checkpointer.resume()
        losses["from"] = step
        while step < steps:
            for (batch,) in checkpointer.loader:
                loss = model(batch).pow(2).mean()
                optimizer.zero_grad(); loss.backward(); optimizer.step()
                step += 1
                total = loss.detach().clone()
                if ranks > 1:
                    dist.all_reduce(total)
                losses[str(step)] = (total / ranks).item()
                if stop and rank == 1 and step == int(stop[0]):
                    os.kill(os.getpid(), signal.SIGTERM)
                checkpointer.step(step)
                if step >= steps:
                    break
except flatout.Stopped as stopped:
    losses["stopped"] = stopped.code
finally:
    with open(f"{folder}-{rank}.json", "w") as file:
        json.dump(losses, file)
if ranks > 1:
    dist.destroy_process_group()
"""


def trained(folder: Path, how: str, ranks: int, steps: int, *stop: str) -> list[dict[str, Any]]:
    script = folder.parent / "train.py"
    script.write_text(SCRIPT)
    launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")
    command = [
        sys.executable,
        *(launcher if ranks > 1 else ()),
        str(script),
        str(folder),
        how,
        str(steps),
        *stop,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(Path(f"{folder}-{rank}.json").read_text()) for rank in range(ranks)]


@pytest.mark.timeout(300)
@pytest.mark.full
@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_ranks_go_on_bit_for_bit_and_others_load_what_they_saved(tmp_path: Path, how: str) -> None:
    whole = trained(tmp_path / "whole", how, 2, 14)
    kept = tmp_path / "kept"
    trained(kept, how, 2, 4)
    assert checkpoints(kept)[0].step == 3
    files = verify(kept / "step-000000003")["files"]
    assert ("rank-1.model.safetensors" in files) == (how == "fsdp")
    resumed = trained(kept, how, 2, 7)
    for before, after in zip(whole, resumed, strict=True):
        assert after.pop("from") == 3
        assert after == {step: before[step] for step in after}
    # At the end of a pass, any number of ranks may go on.
    trained(kept, how, 2, 12)
    for ranks in (1, 4) if how == "fsdp" else (1,):
        copied = tmp_path / f"by {ranks}"
        shutil.copytree(kept, copied)
        found = trained(copied, how, ranks, 14)
        assert found[0].pop("from") == 12
        assert found[0] == pytest.approx({step: whole[0][step] for step in found[0]}, rel=1e-4)


@pytest.mark.timeout(300)
@pytest.mark.full
def test_in_the_middle_of_a_pass_other_ranks_are_refused(tmp_path: Path) -> None:
    trained(tmp_path / "kept", "ddp", 2, 3)
    with pytest.raises(AssertionError, match="saved by 2 ranks in the middle of a pass"):
        trained(tmp_path / "kept", "ddp", 1, 6)


@pytest.mark.timeout(300)
def test_a_signal_for_one_rank_stops_all_at_the_same_step(tmp_path: Path) -> None:
    found = trained(tmp_path / "kept", "fsdp", 2, 40, "5")
    assert [one["stopped"] for one in found] == [143, 143]
    assert [max(int(step) for step in one if step.isdigit()) for one in found] == [7, 7]
    newest = checkpoints(tmp_path / "kept")[0]
    assert newest.step == 7
    assert verify(newest.path)
