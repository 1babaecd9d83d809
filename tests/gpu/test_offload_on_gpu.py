"""Activations and states of optimizers that wait on the host: less memory on a GPU, and the same numbers."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from flatout.levers.activation_offload import ActivationOffload
from flatout.levers.lever import Lever
from flatout.levers.optimizer_offload import OptimizerOffload

GIB = 1 << 30
STEPS = 5


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Any) -> Any:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Trained:
    """Some steps of a stack of blocks, as written or under a lever: losses, weights and the peak."""

    def __init__(self, make: Any = None, *, width: int = 2048, rows: int = 32768) -> None:
        torch.manual_seed(0)
        torch.cuda.empty_cache()
        model = nn.Sequential(*(Block(width) for _ in range(12))).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        scene: Any = SimpleNamespace(
            torch=torch,
            device=torch.device("cuda", torch.cuda.current_device()),
            is_on=lambda _name: None,
            optimizers=lambda: [optimizer],
            roots=lambda: [model],
        )
        lever: Lever | None = make(scene, {"share": 1.0}) if make is not None else None
        call: Any = model
        if lever is not None:
            lever.apply()
            call = lever.around(model, model)
        self.losses = []
        for step in range(STEPS):
            if step == 2:  # states are there by now
                torch.cuda.reset_peak_memory_stats()
            generator = torch.Generator("cuda").manual_seed(step)
            x = torch.randn(rows, width, device="cuda", generator=generator)
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = call(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            self.losses.append(loss.item())
        self.peak = torch.cuda.max_memory_allocated()
        self.weights = [parameter.detach().cpu() for parameter in model.parameters()]
        if lever is not None:
            lever.undo()


@pytest.fixture(scope="module")
def as_written() -> Trained:
    return Trained()


@pytest.mark.parametrize(("make", "least"), [(ActivationOffload, 6 * GIB), (OptimizerOffload, 2 * GIB)])
def test_less_is_held_and_every_number_is_the_same(as_written: Trained, make: Any, least: int) -> None:
    away = Trained(make)
    assert away.losses == as_written.losses
    assert all(torch.equal(a, b) for a, b in zip(away.weights, as_written.weights, strict=True))
    assert as_written.peak - away.peak >= least
