"""Inference mode on an imagined GPU: operators come whole there, and values are asked for by other names."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("torch")

SCRIPT = """
import json
import sys
from pathlib import Path

import torch

from flatout.memory.imagined.world import imagine

ledger = imagine(torch, Path(sys.argv[1]))
nn, F = torch.nn, torch.nn.functional
model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Dropout(), nn.Linear(64, 8)).cuda()
pictures, way = nn.Conv2d(3, 8, 3).cuda(), torch.randn(2, 4, 128, 32, device="cuda")
optimizer = torch.optim.SGD(model.parameters())


def taken():
    return sum(event[1] for event in ledger._events if len(event) == 3)


def update():
    optimizer.zero_grad()
    model(torch.randn(16, 64).cuda()).square().mean().backward()
    optimizer.step()


def validate():
    model.eval()
    x, targets = torch.randn(32, 64).cuda(), torch.randint(0, 8, (32,)).cuda()
    out = model(x)
    loss = F.cross_entropy(out, targets)
    F.scaled_dot_product_attention(way, way, way)
    pictures(torch.randn(4, 3, 16, 16, device="cuda"))
    out[targets == 1], torch.where(targets == 1), F.one_hot(targets, 8)
    model.train()
    return out, loss, targets


def values(out, loss, targets):
    right = (out.argmax(1) == targets).float().mean()
    return [
        loss.item(),
        bool(torch.isnan(loss).any()),
        int(targets.max()),
        float(right),
        right.is_nonzero(),
        targets[:3].tolist(),
        torch.equal(targets, targets),
        torch.equal(targets, out),
        torch.allclose(out, out),
        [0, 1][targets.max()],
        f"{right:.2f}",
    ]


said = {"updates": [], "taken": {}, "values": {}}
update()
no_grad, inference = torch.no_grad, torch.inference_mode
for name, mode in {"plain": no_grad, "first": inference, "second": inference}.items():
    before = taken()
    with mode():
        found = validate()
        said["taken"][name] = taken() - before
        said["values"][name] = values(*found)
    said["values"]["outside"] = values(*found)
    update()
said["updates"] = ledger._updates
said["operators"] = sorted({operator for _, _, operator in ledger._places})
print(json.dumps(said))
"""
VALUES = [1.0, False, 1, 1.0, True, [1, 1, 1], True, False, True, 1, "1.00"]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    words = [sys.executable, "-c", SCRIPT, str(tmp_path_factory.mktemp("imagined"))]
    done = subprocess.run(words, capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_script_that_validates_in_inference_mode_goes_on(said: dict[str, Any]) -> None:
    assert said["updates"] == 4


def test_values_have_the_same_answers_by_whatever_name_they_are_asked_for(said: dict[str, Any]) -> None:
    assert said["values"] == dict.fromkeys(("plain", "first", "second", "outside"), VALUES)


def test_it_takes_what_it_takes_without_gradients(said: dict[str, Any]) -> None:
    """Its second time: whichever comes first asks for what libraries keep."""
    assert said["taken"]["second"] == said["taken"]["plain"]
    assert "aten::convolution" in said["operators"]
    assert not {"aten::linear", "aten::conv2d", "aten::cross_entropy_loss"} & set(said["operators"])
