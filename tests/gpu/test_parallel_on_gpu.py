"""One GPU, and a world of one through torchrun and NCCL: a wrapped model learns what the plain one does."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.runtime.parallel import trainings

ROOT = Path(__file__).parents[2]

SCRIPT = """
import json, sys
import torch
import torch.distributed as dist
import flatout
from tests.unit.runtime.parallel.trainings import batches, loss_of, seeded

cases = {
    "ddp": ("ddp", {}),
    "ddp, compressed": ("ddp", {"compress": "bf16"}),
    "fsdp": ("fsdp", {}),
    "fsdp, computed again": ("fsdp", {"checkpoint": True}),
    "fsdp, on the host": ("fsdp", {"offload": True}),
    "fsdp, bf16": ("fsdp", {"precision": "bf16"}),
    "tensor": ("tensor", {}),
}
told = {}
for name, (strategy, options) in cases.items():
    model, optimizer = seeded()
    sample = next(batches(1))[0]
    more = {"sample": sample} if strategy == "tensor" else {}
    with flatout.parallel(
        strategy, model=model, optimizer=optimizer, even_alone=True, **more, **options
    ) as world:
        losses = []
        for inputs, targets in batches(4):
            world.optimizer.zero_grad()
            loss = world.train_step(inputs.to(world.device), targets.to(world.device), loss_of)
            world.clip(0.5)
            world.optimizer.step()
            losses.append(world.mean(loss).item())
        about = [str(world.device), "nccl" in str(dist.get_backend_config()), type(world.model).__name__]
        world.save(f"{sys.argv[1]}/{strategy}.pt")
    plain, its = seeded(seed=1)
    saved = torch.load(f"{sys.argv[1]}/{strategy}.pt")
    plain.load_state_dict(saved["model"])
    its.load_state_dict(saved["optimizer"])
    told[name] = {"losses": losses, "about": about, "gone": not dist.is_initialized()}
with open(f"{sys.argv[1]}/told.json", "w") as file:
    json.dump(told, file)
"""


@pytest.mark.gpu
@pytest.mark.timeout(300)
def test_a_world_of_one_over_nccl_learns_what_a_plain_process_learns(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
    done = subprocess.run(
        [*launch, str(script), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env=_with_tests_importable(),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    model, optimizer = trainings.seeded()
    right = trainings.alone(model, optimizer, 4, clip=0.5)
    for name, told in json.loads((tmp_path / "told.json").read_text()).items():
        rounded = "bf16" in name or "compressed" in name
        assert told["losses"] == pytest.approx(right, rel=2e-2 if rounded else 1e-3), name
        assert told["about"][:2] == ["cuda:0", True]
        assert told["gone"]


def _with_tests_importable() -> dict[str, Any]:
    paths = (str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", ""))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
