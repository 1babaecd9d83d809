"""A NaN on one rank of two: all skip, and go on alike. Real processes, real collectives."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """
import json, os, sys
import torch
import torch.distributed as dist
from torch import nn
import flatout

folder = sys.argv[1]
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()

def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 1))

def batch(step):
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step + rank))

def replicated(scaled):
    model = nn.parallel.DistributedDataParallel(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    average = torch.optim.swa_utils.AveragedModel(model.module)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0) if scaled else None
    update = flatout.Update(
        model, optimizer, scaler=scaler, scheduler=scheduler, ema=average, clip_norm=1.0, patience=2
    )
    bad_here = 0
    for step in range(6):
        loss = model(batch(step)).pow(2).mean()
        (scaler.scale(loss) if scaled else loss).backward()
        if step in (2, 4) and rank == step // 2 - 1:  # gradients were averaged: now one rank alone is bad
            model.module[0].weight.grad[0, 0] = float("nan")
            bad_here += 1
        update.step(loss)
    return {
        "bad_here": bad_here,
        "counts": [update.counts.made, update.counts.skipped],
        "scheduler": scheduler.last_epoch,
        "average": int(average.n_averaged),
        "optimizer": int(optimizer.state[model.module[0].weight]["step"]),
        "scale": scaler.get_scale() if scaled else None,
        "weights": sum(one.double().sum().item() for one in model.parameters()),
        "averages": sum(one.double().sum().item() for one in average.parameters()),
    }

def sharded():
    from torch.distributed.fsdp import fully_shard
    model = network()
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    update = flatout.Update(model, optimizer, clip_norm=1.0, on_nan="stop")
    told = None
    try:
        for step in range(5):
            loss = model(batch(step)).pow(2).mean()
            loss.backward()
            if step == 3 and rank == 1:  # a shard that only this rank has
                model[0].weight.grad.to_local()[0] = float("inf")
            update.step(loss)
    except flatout.NotFinite as stopped:
        told = stopped.diagnosis
    return {"made": update.counts.made, "update": told.update, "names": told.parameters}

found = {"plain": replicated(False), "scaled": replicated(True), "sharded": sharded()}
with open(f"{folder}/{rank}.json", "w") as file:
    json.dump(found, file)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "train.py").write_text(SCRIPT)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    command = [sys.executable, *launcher, str(folder / "train.py"), str(folder)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as started:
        try:
            _, told = started.communicate(timeout=250)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
    assert started.returncode == 0, told[-3000:]
    # Told by the first rank alone, whichever was bad; a scaler that backs off is no news.
    assert told.count("update 3 is skipped") == 1
    assert told.count("update 5 is skipped: another rank's") == 1
    return [json.loads(Path(folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("how", ["plain", "scaled"])
def test_a_nan_on_one_rank_is_skipped_by_all_with_all_that_goes_along(
    ranks: list[dict[str, Any]], how: str
) -> None:
    first, second = (rank[how] for rank in ranks)
    assert (first["bad_here"], second["bad_here"]) == (1, 1), "the fault did not fire"
    for one in (first, second):
        assert one["counts"] == [4, 2]
        assert (one["scheduler"], one["average"], one["optimizer"]) == (4, 4, 4)
    assert {**first, "bad_here": 0} == {**second, "bad_here": 0}
    assert first["scale"] == (64.0 if how == "scaled" else None)


def test_a_shard_that_is_bad_stops_all_ranks_at_the_same_update(ranks: list[dict[str, Any]]) -> None:
    assert [rank["sharded"]["update"] for rank in ranks] == [4, 4]
    assert [rank["sharded"]["made"] for rank in ranks] == [3, 3]
    assert "0.weight" in ranks[1]["sharded"]["names"]
