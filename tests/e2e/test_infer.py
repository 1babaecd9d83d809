"""`--infer`: scripts that infer are profiled and tuned; a step is a call of their model."""

import json
from pathlib import Path

import pytest

from tests.e2e.conftest import Run, flatout

__all__ = ["flatout"]  # the fixture

# Anomaly detection was left on, which makes each operation with gradients note its stack: a sure gain.
SLOW = """
import sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.autograd.set_detect_anomaly(True)
model = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(40)), nn.Linear(16, 10))
model.eval()
data = TensorDataset(torch.randn(8 * int(sys.argv[1]), 16))
counts = torch.zeros(10)
for (x,) in DataLoader(data, batch_size=8):
    scores = model(x)
    if torch.is_anomaly_enabled():
        time.sleep(0.005)  # on a busy machine, too
    counts += torch.bincount(scores.argmax(-1), minlength=10)
print("counts", counts.tolist())
"""

# Two models a sample, and one that answers token by token.
PIPELINE = """
import torch
from torch import nn


class Speaker(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(50, 16), nn.Linear(16, 50)

    def forward(self, tokens):
        return self.head(self.table(tokens).mean(1))

    def generate(self, tokens, count):
        for _ in range(count):
            tokens = torch.cat([tokens, self(tokens).argmax(-1, keepdim=True)], 1)
        return tokens


torch.manual_seed(0)
{use}
"""
TWO = "small, large = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 64), nn.Linear(64, 4))\n"
TWO += "with torch.no_grad():\n    for _ in range(12):\n        large(small(torch.ones(3, 4)))\n"
SPEAKS = "speaker = Speaker().eval()\nwith torch.inference_mode():\n"
SPEAKS += "    for _ in range(6):\n        speaker.generate(torch.ones(2, 3, dtype=torch.long), 5)\n"


@pytest.mark.timeout(600)
def test_an_inference_script_is_tuned_and_runs_under_its_plan(flatout: Run, tmp_path: Path) -> None:
    (tmp_path / "predict.py").write_text(SLOW)
    words = ("--infer", "--budget", "30s", "--only", "debug-modes,no-gradients", "predict.py", "9999")
    done = flatout("tune", "--json", *words)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    kept = {trial["lever"] for trial in found["trials"] if trial["verdict"] == "kept"}
    assert kept & {"debug-modes", "no-gradients"}
    assert found["speedup"] > 1.1
    assert found["guard"]["verdict"] == "same"
    assert "outputs" in found["guard"]["reason"]
    assert "infer = true" in (tmp_path / "flatout.toml").read_text()
    bare = flatout("run", "--as-written", "predict.py", "60")
    done = flatout("run", "--json", "predict.py", "60")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["steps"] == 60
    assert not told["dropped_levers"]
    [line] = [line for line in bare.stdout.splitlines() if line.startswith("counts")]
    assert line in done.stderr


@pytest.mark.parametrize(
    ("use", "steps", "samples"),
    [pytest.param(TWO, 12, 3, id="two", marks=pytest.mark.full), pytest.param(SPEAKS, 5, 2, id="speaks")],
)
def test_a_step_is_a_call_of_the_largest_model_or_a_whole_generate(
    flatout: Run, tmp_path: Path, use: str, steps: int, samples: int
) -> None:
    (tmp_path / "predict.py").write_text(PIPELINE.format(use=use))
    done = flatout("profile", "--infer", "--no-trace", "--no-limits", "--json", "predict.py")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["updates"] == steps
    assert found["samples_per_step"] in (samples, samples * 5)


@pytest.mark.full
def test_without_the_word_it_is_said(flatout: Run, tmp_path: Path) -> None:
    (tmp_path / "predict.py").write_text(PIPELINE.format(use=TWO))
    done = flatout("profile", "predict.py")
    assert done.returncode == 4
    assert "--infer" in done.stderr
