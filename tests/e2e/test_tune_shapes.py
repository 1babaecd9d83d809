"""The whole loop on jobs of several shapes: plan written, applied, patched; script and folder untouched."""

import dataclasses
import html
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.jobs import QUICK_SGD, Place, digests, document, place_in, torchrun

pytest.importorskip("torch")

# Each starts its script a dozen times, on a machine that is busy with other tests.
pytestmark = pytest.mark.timeout(600)

# Attention by hand, at a size where writing the scores down is what takes the time.
# Long enough that a fused kernel is more than twice as fast, whatever else the machine does.
ATTENTION = """
import sys, torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.register_buffer("mask", torch.tril(torch.ones(768, 768)))
    def forward(self, x):
        q, k, v = self.qkv(x).view(*x.shape[:2], 2, 24).transpose(1, 2).split(8, dim=3)
        scores = (q @ k.transpose(-2, -1)) / 8**0.5
        y = scores.masked_fill(self.mask == 0, float("-inf")).softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(x.shape))
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(int(sys.argv[1]) if len(sys.argv) > 1 else 100000):
    x = torch.randn(1, 768, 16)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("done", step + 1)
"""

# A data set that waits, as for a disk; its size comes from an option of the script's own.
LOADER = (
    QUICK_SGD
    + """
import argparse
from torch import nn
from torch.utils.data import DataLoader, Dataset
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--steps", type=int, default=100000)
parser.add_argument("--wait", type=float, default=0.005)
args = parser.parse_args()
torch.manual_seed(0)
class Data(Dataset):
    def __len__(self):
        return 4096
    def __getitem__(self, place):
        time.sleep(args.wait)
        return torch.full((8,), place / 4096), place % 2
model = nn.Linear(8, 2)
optimizer = Sgd(model.parameters(), lr=0.1)
done = 0
while done < args.steps:
    for x, y in DataLoader(Data(), batch_size=args.batch_size, shuffle=True):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done += 1
        if done == args.steps:
            break
print("done", done)
"""
)

# Two networks with an optimizer each, and a debug mode left on that surely costs time; saves on its way, and
# seeds nothing.
GAN = (
    QUICK_SGD
    + """
from torch import nn
torch.set_num_threads(1)
torch.autograd.set_detect_anomaly(True)
def network(out):
    return nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(40)], nn.Linear(4, out))
maker, critic = network(4), network(1)
for_maker, for_critic = Sgd(maker.parameters(), lr=1e-4), Sgd(critic.parameters(), lr=1e-4)
judge = nn.BCEWithLogitsLoss()
one, zero = torch.ones(8, 1), torch.zeros(8, 1)
for step in range(int(sys.argv[1]) if len(sys.argv) > 1 else 100000):
    fake = maker(torch.randn(8, 4))
    loss = judge(critic(torch.randn(8, 4)), one) + judge(critic(fake.detach()), zero)
    for_critic.zero_grad()
    loss.backward()
    for_critic.step()
    loss = judge(critic(fake), one)
    for_maker.zero_grad()
    loss.backward()
    for_maker.step()
    if torch.is_anomaly_enabled():
        time.sleep(0.01)
    if step % 20 == 0:
        torch.save(maker.state_dict(), "checkpoint.pt")
print("done", step + 1)
"""
)

# Two processes with gloo, and a switch left on from the last hunt for a bug.
RANKS = """
import sys, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
torch.autograd.set_detect_anomaly(True)
layers = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(60)]
model = DistributedDataParallel(nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(int(sys.argv[1]) if len(sys.argv) > 1 else 100000):
    loss = model(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.barrier()
print("done", step + 1)
dist.destroy_process_group()
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path) as place:
        yield dataclasses.replace(place, timeout_s=280)


def tuned(place: Place, *words: str, budget: str = "40s") -> dict[str, Any]:
    """`flatout tune`; nothing in the user's folder but the plan is new."""
    before = digests(place)
    done = place.flatout("tune", "--json", "--budget", budget, *words)
    found: dict[str, Any] = document(done)
    assert done.returncode == 0, done.stderr
    assert digests(place) == before
    page = (place.work / found["report"]).read_text()
    assert html.escape(found["summary"]) in page
    return found


def kept(found: dict[str, Any]) -> list[str]:
    return [trial["lever"] for trial in found["trials"] if trial["verdict"] == "kept"]


def ran(place: Place, *words: str) -> dict[str, Any]:
    own = place.home / "tmp"
    own.mkdir(exist_ok=True)
    done = place.flatout("run", "--json", *words, TMPDIR=str(own))
    assert done.returncode == 0, done.stderr
    assert "done" in done.stderr
    found: dict[str, Any] = document(done)
    assert found["dropped_levers"] == {}
    return found


def test_attention_by_hand(place: Place) -> None:
    place.script(ATTENTION)
    found = tuned(place, "--only", "attention", "train.py")
    assert kept(found) == ["attention"], found
    assert found["guard"]["verdict"] == "same"
    assert found["speedup"] > 1.05
    figures = ran(place, "train.py", "40")
    assert figures["levers"] == ["attention"]
    # The script seeds itself: its first steps can be held against those that tuning saw.
    assert figures["guard"]["paired"]
    assert (figures["guard"]["verdict"], figures["guard"]["steps"]) == ("inside", 40)
    shown = place.flatout("patch")
    assert "scaled_dot_product_attention(q, k, v" in shown.stdout


def test_a_loader_that_waits(place: Place) -> None:
    place.script(LOADER)
    found = tuned(place, "--only", "loader", "train.py")
    assert kept(found) == ["loader"], found
    [trial] = [trial for trial in found["trials"] if trial["lever"] == "batch-size"]
    assert (trial["verdict"], trial["class"]) == ("skipped", "recipe")
    assert "--allow" in trial["reason"]
    assert found["speedup"] > 1.2
    assert ran(place, "train.py", "--steps", "30")["levers"][0].startswith("loader")
    shown = place.flatout("patch")
    assert "num_workers=" in shown.stdout


@pytest.mark.full
def test_a_larger_batch_where_it_is_allowed(place: Place) -> None:
    place.script(LOADER)
    # Without a wait, a step costs the same whatever its batch: each doubling nearly doubles throughput.
    words = ("--only", "batch-size", "--allow", "batch-size", "train.py", "--wait", "0")
    found = tuned(place, *words)
    assert kept(found) == ["batch-size"], found
    assert any("learning rate" in note for note in found["notes"])
    text = (place.work / "flatout.toml").read_text()
    assert "--batch-size" in text
    assert "learning rate" in text
    figures = ran(place, "train.py", "--wait", "0", "--steps", "30")
    assert figures["steps"] == 30
    assert figures["guard"]["reason"] == "another batch size is another training"
    assert "on the command line" in place.flatout("patch").stdout


def test_two_optimizers_checkpoints_and_no_seed(place: Place) -> None:
    place.script(GAN)
    place.script("mine", "checkpoint.pt")
    found = tuned(place, "--only", "debug-modes", "train.py")
    assert kept(found) == ["debug-modes"], found
    assert found["guard"]["verdict"] in ("same", "weak")
    ran(place, "train.py", "30")
    assert "set_detect_anomaly(False)" in place.flatout("patch").stdout


@pytest.mark.full
def test_ranks_change_together(place: Place) -> None:
    place.script(RANKS)
    found = tuned(place, "--only", "debug-modes", *torchrun("train.py"))
    assert kept(found) == ["debug-modes"], found
    assert found["guard"]["verdict"] == "same"
    assert "bit for bit" in found["guard"]["reason"]
    figures = ran(place, *torchrun("train.py", "40"))
    assert figures["steps"] == 40


@pytest.mark.full
def test_a_script_that_is_never_the_same_twice(place: Place) -> None:
    """It seeds itself by the clock: no two runs can be compared step by step, and that is said."""
    place.script(GAN.replace("torch.set_num_threads(1)", "torch.set_num_threads(1)\ntorch.seed()"))
    found = tuned(place, "--only", "debug-modes", "train.py")
    assert kept(found) == ["debug-modes"], found
    assert found["guard"]["verdict"] == "weak"
    assert not found["guard"]["paired"]


@pytest.mark.full
def test_a_lever_that_hangs_has_failed_and_the_others_are_tried(place: Place) -> None:
    """Fused, this job sleeps for ever; with other threads it goes on."""
    hanging = ATTENTION.replace("SGD", "AdamW").replace(
        "    optimizer.step()",
        '    optimizer.step()\n    optimizer.param_groups[0]["fused"] and __import__("time").sleep(1e6)',
    )
    place.script(hanging)
    found = tuned(
        place, "--only", "fused-optimizer", "--only", "attention", "--silence-limit", "8", "train.py"
    )
    verdicts = {trial["lever"]: (trial["verdict"], trial["reason"]) for trial in found["trials"]}
    assert verdicts["fused-optimizer"][0] == "failed"
    assert "hung" in verdicts["fused-optimizer"][1]
    assert verdicts["attention"][0] == "kept"


@pytest.mark.full
def test_an_interrupted_tuning_goes_on(place: Place) -> None:
    place.script(ATTENTION)
    first = tuned(place, "--only", "attention", "train.py")
    asked = place.work / ".flatout" / "runs" / first["run"] / "comparisons.jsonl"
    before = len(asked.read_text().splitlines())
    again = tuned(place, "--only", "attention", "--resume", "latest", "train.py")
    assert kept(again) == ["attention"]
    entries = [
        json.loads(line)
        for line in (place.work / ".flatout" / "runs" / again["run"] / "comparisons.jsonl")
        .read_text()
        .splitlines()
    ]
    assert len(entries) == before
    assert all(entry["took_s"] == 0 for entry in entries)
    other = place.flatout("tune", "--resume", "latest", "train.py", "7")
    assert other.returncode == 2
    assert "another job" in other.stderr


@pytest.mark.full
def test_less_memory(place: Place) -> None:
    place.script(ATTENTION.replace("randn(1, 768, 16)", "randn(6, 768, 16)"))
    found = tuned(place, "--goal", "memory", "--only", "attention", "train.py")
    assert kept(found) == ["attention"], found
    assert found["best"]["peak_bytes"] < found["baseline"]["peak_bytes"]
    assert "less memory" in found["summary"]
    limit = str(found["best"]["peak_bytes"] // 2)
    none = tuned(place, "--max-memory", limit, "--only", "attention", "train.py")
    assert none["plan"] is None
    assert any("--max-memory" in note for note in none["notes"])
