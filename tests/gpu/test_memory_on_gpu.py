"""Out of memory on a real GPU: the autopsy names it, its first fix makes it fit, a batch recovers."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import flatout  # noqa: E402

ROOT = Path(__file__).parents[2]
GIB = 1 << 30
# Blocks that keep nine values for each that goes through.
BLOCKS = """
import argparse
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--steps", type=int, default=6)
chosen = parser.parse_args()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(1024, 4096), nn.Linear(4096, 1024)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(x)))  # here


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(16))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


torch.manual_seed(0)
model = Model().to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(chosen.steps):
    x = torch.randn(chosen.batch_size, 1024, 1024).to("cuda")
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item(), flush=True)
"""
LINE = 1 + next(number for number, text in enumerate(BLOCKS.splitlines()) if text.endswith("# here"))


@pytest.fixture(autouse=True)
def _room_for_others() -> Iterator[None]:
    yield
    torch.cuda.empty_cache()  # the next test's jobs are processes of their own


def ran(*words: str, folder: Path) -> Any:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}"}
    return subprocess.run(
        [sys.executable, "-m", "flatout", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def too_large() -> int:
    """A batch whose activations are a quarter more than the device has: 16 blocks, 9 values of 1024 each."""
    total = torch.cuda.get_device_properties(0).total_memory
    return round(1.25 * total / (16 * 9 * 1024 * 1024 * 4))


@pytest.mark.timeout(300)
def test_the_autopsy_names_it_and_the_job_goes_on_with_what_fits(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BLOCKS)
    words = ("run", "--json", "--as-written", "train.py", "--steps", "4", "--batch-size", str(too_large()))
    done = ran(*words, folder=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    [path] = (tmp_path / ".flatout" / "runs").glob("*/autopsy.json")
    autopsy = json.loads(path.read_text())
    found = autopsy["found"]
    assert max(found["parts"], key=found["parts"].get) == "activations"
    assert f"train.py:{LINE} in forward" in found["holders"][0]["where"]
    assert found["phase"] == "forward"
    calls = [call.partition(" in ")[2] for call in found["stacks"][0]["frames"]]
    assert [name.rpartition(".")[2] for name in calls] == ["<module>", "forward", "forward"]
    assert "train.py" in (tmp_path / autopsy["report"]).read_text()
    snapshot = pickle.loads((tmp_path / autopsy["snapshot"]).read_bytes())
    assert "total_allocated" in torch.cuda._memory_viz.segsum(snapshot)
    assert autopsy["fixes"], autopsy["notes"]
    assert "block-checkpointing" in " ".join(json.loads(done.stdout)["levers"])
    # What the script printed; the traceback of its first life shows a line with its loss, too.
    assert sum(line.startswith("loss ") for line in done.stderr.splitlines()) == 4


# Small for some updates, then all at once more than there is; before that, nearly all of it if so asked.
LATE = """
import sys
import torch

model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.AdamW(model.parameters())
held = None
for step in range(40):
    model(torch.randn(8, 1024, device="cuda")).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step in (1, 20, 39):
        print(torch._C._cuda_isHistoryEnabled(), flush=True)
    if step == 20 and "full" in sys.argv:
        size = int(0.75 * torch.cuda.get_device_properties(0).total_memory)
        held = torch.empty(size, dtype=torch.uint8, device="cuda")
torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
"""


@pytest.mark.timeout(200)
@pytest.mark.parametrize(("words", "kept"), [((), "True False False"), (("full",), "True False True")])
def test_stacks_are_kept_at_first_and_where_the_gpu_is_nearly_full(
    tmp_path: Path, words: tuple[str, ...], kept: str
) -> None:
    (tmp_path / "train.py").write_text(LATE)
    done = ran("run", "--as-written", "train.py", *words, folder=tmp_path)
    assert done.stdout.split() == kept.split(), done.stderr[-2000:]
    [path] = (tmp_path / ".flatout" / "runs").glob("*/autopsy.json")
    autopsy = json.loads(path.read_text())
    assert autopsy["found"]["stacks_kept"] is kept.endswith("True")
    assert autopsy["found"]["parts"]["parameters"] > 4 << 20
    assert any("are not known" in note for note in autopsy["notes"]) is kept.endswith("False")


@pytest.mark.timeout(200)
def test_a_batch_that_runs_out_goes_through_in_parts_and_learns_the_same() -> None:
    def model_of() -> Any:
        torch.manual_seed(0)
        blocks = (
            torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024))
            for _ in range(8)
        )
        return torch.nn.Sequential(*blocks).to("cuda")

    total = torch.cuda.get_device_properties(0).total_memory
    samples = round(1.4 * total / (8 * 9 * 1024 * 4)) // 64 * 64
    batch = torch.randn(samples, 1024, device="cuda")
    model, other = model_of(), model_of()
    optimizer, twin = (torch.optim.SGD(one.parameters(), lr=0.01) for one in (model, other))
    step = flatout.Microbatch(lambda part: model(part).pow(2).mean(), model)
    losses, expected = [], []
    for _ in range(3):
        optimizer.zero_grad()
        done = step(batch)
        optimizer.step()
        losses.append(float(done.loss))
        twin.zero_grad()
        whole = 0.0
        for part in batch.chunk(16):
            loss = other(part).pow(2).mean() / 16
            loss.backward()
            whole += float(loss)
        twin.step()
        expected.append(whole)
    assert done.parts > 1
    assert step.size is not None
    assert losses == pytest.approx(expected, rel=1e-4)


@pytest.mark.timeout(300)
def test_what_fit_predicts_is_what_is_reserved(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BLOCKS + "\nprint(torch.cuda.max_memory_reserved())\n")
    predicted = json.loads(ran("fit", "--json", "train.py", "--batch-size", "32", folder=tmp_path).stdout)
    words = [sys.executable, "train.py", "--batch-size", "32"]
    measured = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert predicted["reserved_bytes"] == pytest.approx(int(measured.split()[-1]), rel=0.02)


EVALUATES = """
import torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for _ in range(5):
        model.train()
        loss = model(torch.randn(8, 64, device="cuda")).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    free, total = torch.cuda.mem_get_info()
    torch.empty(int(free - 0.03 * total), dtype=torch.uint8, device="cuda")  # and nobody holds it
    model.eval()
    with torch.no_grad():
        model(torch.randn(3, 64, device="cuda"))
"""


@pytest.mark.timeout(200)
def test_cached_memory_is_given_back_before_an_evaluation(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(EVALUATES)
    done = ran("run", "--json", "--as-written", "train.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    cleanups = json.loads(done.stdout)["cleanups"]
    # The first evaluation comes while it is not known yet which modules train.
    assert cleanups["evaluations"] >= 2
    assert cleanups["freed_bytes"] > 50 * GIB
