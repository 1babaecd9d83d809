"""`flatout.fit`: a model and a batch, as functions."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import flatout
from flatout.records.errors import CallerMistake

USES = """
import dataclasses, json
import torch
import flatout

WIDTH = 2048


def model():
    return torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)))


def batch():
    return (torch.randn(64, WIDTH),)


def loss(output, batch):
    return torch.nn.functional.mse_loss(output, batch[0])


if __name__ == "__main__":
    for more in ({}, {"optimizer": "SGD", "loss": loss}, {"optimizer": None}):
        found = flatout.fit(model, batch, gpus=["t4"], **more)
        print(json.dumps([dataclasses.asdict(found.parts), found.options[0].fits]))
"""
WEIGHTS = 4 * 4 * 2048 * 2048


@pytest.mark.full
def test_training_with_states_without_them_and_inference(tmp_path: Path) -> None:
    (tmp_path / "use.py").write_text(USES)
    done = subprocess.run(
        [sys.executable, "use.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    adam, sgd, inference = (json.loads(line) for line in done.stdout.splitlines())
    assert adam[1] is sgd[1] is inference[1] is True
    assert adam[0]["parameters"] == sgd[0]["parameters"] == inference[0]["parameters"] == WEIGHTS
    assert adam[0]["optimizer"] == pytest.approx(2 * WEIGHTS, rel=0.001)
    assert sgd[0]["optimizer"] == 0
    assert sgd[0]["gradients"] > 0
    assert inference[0]["gradients"] == 0
    assert inference[0]["activations"] < 4 << 20
    assert not list(tmp_path.glob(".flatout"))


def test_what_no_other_process_finds_is_a_mistake() -> None:
    with pytest.raises(CallerMistake, match="cannot be found by another process"):
        flatout.fit(lambda: None, lambda: None)
