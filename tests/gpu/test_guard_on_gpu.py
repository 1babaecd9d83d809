"""The guard on a real GPU, where what is drawn depends on how tensors are stored."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.test_tune_on_gpu import flatout

DROPS = """
import argparse, math, torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100000)
steps = parser.parse_args().steps
torch.manual_seed(3)


class Block(nn.Module):
    def __init__(self, width=768, heads=12):
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(),
                                 nn.Linear(4 * width, width), nn.Dropout(0.1))
        self.drop, self.drop_scores = nn.Dropout(0.1), nn.Dropout(0.1)
        self.register_buffer("mask", torch.tril(torch.ones(256, 256)).view(1, 1, 256, 256))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2)
                   for part in self.qkv(self.norm(x)).split(width, dim=2))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(self.mask[:, :, :length, :length] == 0, float("-inf"))
        mixed = self.drop_scores(torch.softmax(scores, dim=-1)) @ v
        x = x + self.drop(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        return x + self.mlp(x)


blocks = [Block() for _ in range(4)]
model = nn.Sequential(nn.Embedding(512, 768), nn.Dropout(0.1), *blocks, nn.Linear(768, 512)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for _ in range(steps):
    tokens = torch.randint(0, 512, (16, 257), device="cuda")
    loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def judgements(folder: Path) -> list[dict[str, Any]]:
    [told] = folder.glob(".flatout/runs/*/guard.jsonl")
    return [json.loads(line) for line in told.read_text().splitlines()]


@pytest.mark.timeout(300)
def test_dropout_in_half_precision_and_in_graphs_drops_the_same_elements(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(DROPS)
    only = [word for lever in ("bf16", "attention", "compile") for word in ("--only", lever)]
    found = flatout("tune", "--json", "--budget", "90s", *only, "train.py", folder=tmp_path)
    verdicts = {trial["lever"]: trial["verdict"] for trial in found["trials"] if trial["verdict"] == "kept"}
    assert found["guard"]["verdict"] == "same", judgements(tmp_path)
    assert {"bf16", "compile"} <= set(verdicts)
    ran = flatout("run", "--json", "train.py", "--steps", "150", folder=tmp_path)
    assert ran["guard"]["verdict"] == "inside"
