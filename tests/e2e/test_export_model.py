"""`flatout export-model`: a package that answers like the module, or the line that stands in the way."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flatout.infer.serving.collating import Runner
from flatout.infer.serving.loading import load
from flatout.infer.serving.proving import prove
from flatout.records.errors import JobFailed

MODELS = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)), torch.randn(4, 8)

class Branches(nn.Module):
    def forward(self, x):
        if x.sum() > 0:  # the line
            return x * 2
        return x

def branches():
    return Branches(), torch.randn(4, 8)

def alone():
    return nn.Linear(2, 2)
"""

LOADS = """
import sys, torch, flatout
torch.manual_seed(0)
torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)
model = flatout.load_model("model.pt2")
assert "models" not in sys.modules
for samples in (1, 4, 9):
    print(tuple(model(torch.randn(samples, 8)).shape))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("export")
    (made / "models.py").write_text(MODELS)
    return made


def export(folder: Path, *words: str, timeout: float = 250) -> Any:
    command = [sys.executable, "-m", "flatout", "export-model", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout)


def test_code_that_cannot_be_followed_is_named_by_its_line(folder: Path) -> None:
    line = 1 + MODELS.splitlines().index("        if x.sum() > 0:  # the line")
    done = export(folder, "models:branches", "--out", "model.pt2", "--json")
    assert done.returncode == 4, done.stderr
    assert f"models.py:{line}" in done.stderr
    assert "data-dependent" in done.stderr, "torch's own words"
    document = json.loads(done.stdout)
    assert document["exit_code"] == 4
    assert not (folder / "model.pt2").exists()


def test_a_module_without_inputs_is_answered(folder: Path) -> None:
    done = export(folder, "models:alone", "--out", "m.pt2")
    assert done.returncode == 2
    assert "no inputs" in done.stderr
    assert "Traceback" not in done.stderr


def test_mistakes_that_need_no_torch_are_answered_at_once(folder: Path) -> None:
    assert "ends in .pt2" in export(folder, "models:make", "--out", "model.bin").stderr


@pytest.mark.full
@pytest.mark.timeout(400)
def test_a_package_answers_like_its_module_without_it(folder: Path) -> None:
    done = export(folder, "models:make", "--out", "model.pt2", "--json", timeout=300)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert made["schema"] == "flatout.export-model/1"
    assert made["dynamic_batch"]
    assert made["error"] <= made["allowed_error"]
    assert made["look"]["inputs"][0]["shape"] == [4, 8]
    (folder / "models.py").rename(folder / "gone.txt")
    try:
        loaded = subprocess.run(
            [sys.executable, "-c", LOADS], cwd=folder, capture_output=True, text=True, timeout=250
        )
    finally:
        (folder / "gone.txt").rename(folder / "models.py")
    assert loaded.stdout.splitlines() == ["(1, 4)", "(4, 4)", "(9, 4)"], loaded.stderr
    assert not list(folder.glob(".model-*"))
    # A server needs no word of its inputs, and compiled code is never given others.
    assert [str(spec) for spec in load(str(folder / "model.pt2"), (), "cpu").specs] == ["input0:float32[8]"]
    wrong = load(str(folder / "model.pt2"), ("x:float32[9]",), "cpu")
    with pytest.raises(JobFailed, match=r"float32 \(1, 9\)"):
        prove(Runner(wrong))
