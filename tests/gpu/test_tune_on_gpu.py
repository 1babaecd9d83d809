"""`tune` and `run` on a real GPU, end to end on an example."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
# Wide enough that the GPU holds it up, with levers too: launches of a smaller one hide what they give.
SMALL = "--layers 4 --width 1024 --heads 16 --length 1024 --vocabulary 8000 --batch 8".split()  # noqa: SIM905


def flatout(*words: str, folder: Path) -> Any:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(
        [sys.executable, "-m", "flatout", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.timeout(400)
def test_a_gpt_with_attention_by_hand_is_tuned_and_run(tmp_path: Path) -> None:
    script = str(ROOT / "examples" / "gpt.py")
    only = [word for lever in ("bf16", "fused-optimizer", "attention") for word in ("--only", lever)]
    found = flatout("tune", "--json", "--budget", "60s", *only, script, *SMALL, folder=tmp_path)
    verdicts = {trial["lever"]: (trial["verdict"], trial["reason"]) for trial in found["trials"]}
    assert verdicts["attention"][0] == "kept", verdicts["attention"]
    assert verdicts["bf16"][0] == "kept", verdicts["bf16"]
    assert found["guard"]["verdict"] == "same"
    assert found["speedup"] > 1.5
    ran = flatout("run", "--json", script, *SMALL, "--steps", "200", folder=tmp_path)
    assert ran["dropped_levers"] == {}
    assert ran["guard"]["verdict"] == "inside"
    assert ran["guard"]["paired"]
    assert ran["samples_per_s"] > 0.8 * found["best"]["samples_per_s"]
    assert ran["promised_samples_per_s"] is None  # it was tuned with other arguments


HELD_BY_ITS_LOADER = """
import time, torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 100_000
    def __getitem__(self, place):
        time.sleep(0.004)
        return torch.full((1024,), place % 7 / 7), place % 7

model = torch.nn.Sequential(*(torch.nn.Linear(width, 4096) for width in (1024, *[4096] * 11)),
                            torch.nn.Linear(4096, 7)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for _ in range(1000):
    for x, y in DataLoader(Slow(), batch_size=32, num_workers=1):
        x, y = x.cuda(), y.cuda()
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x.repeat(128, 1)), y.repeat(128))
        loss.backward()
        optimizer.step()
        loss.item()
"""


@pytest.mark.timeout(400)
def test_a_job_that_waits_for_its_loader_gets_levers_and_workers(tmp_path: Path) -> None:
    """A batch takes 128 ms to make, about 40 ms to train on in float32, and a few with tensor cores."""
    (tmp_path / "train.py").write_text(HELD_BY_ITS_LOADER)
    only = [word for lever in ("loader", "tf32", "bf16") for word in ("--only", lever)]
    found = flatout("tune", "--json", "--budget", "60s", *only, "train.py", folder=tmp_path)
    kept = [trial["lever"] for trial in found["trials"] if trial["verdict"] == "kept"]
    assert "loader" in kept
    assert {"tf32", "bf16"} & set(kept)
    [loader, *levers] = found["ladder"]
    assert loader["lever"].startswith("loader")
    assert 1.5 < loader["gain"] < 6.0  # as far as the job as written can follow
    assert levers[-1]["speedup"] > 1.2 * loader["speedup"]
