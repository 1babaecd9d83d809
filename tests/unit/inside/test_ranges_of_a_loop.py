"""NVTX ranges around the parts of a step, in a real loop that knows nothing of them."""

from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from flatout.inside.session import Session
from flatout.records.session import Order


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What NVTX was told: where ranges begin, and where they end."""
    told: list[str] = []
    nested: list[str] = []

    def push(text: str) -> None:
        nested.append(text)
        told.append(f"({text}")

    def start(text: str) -> str:
        told.append(f"({text}")
        return text

    nvtx = torch.cuda.nvtx
    monkeypatch.setattr(nvtx, "mark", told.append)
    monkeypatch.setattr(nvtx, "range_push", push)
    monkeypatch.setattr(nvtx, "range_pop", lambda: told.append(f"{nested.pop()})"))
    monkeypatch.setattr(nvtx, "range_start", start)
    monkeypatch.setattr(nvtx, "range_end", lambda text: told.append(f"{text})"))
    return told


def _train() -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(8, 4), torch.randn(8, 1)), batch_size=4)
    for _ in range(2):
        for inputs, targets in loader:
            torch.nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()


def test_each_part_of_a_step_has_its_range(tmp_path: Path, said: list[str]) -> None:
    session = Session(torch, Order(folder=str(tmp_path), nvtx=True))
    session.arm()
    try:
        _train()
    finally:
        session.finish()
        session.disarm()
    assert not session.failed
    parts = [text for text in said if not text.startswith(("(epoch", "epoch", "(step", "step", "flatout"))]
    step = ["(data", "data)", "(forward", "(loss", "forward)", "loss)", "(backward", "backward)"]
    step += ["(optimizer", "optimizer)"]
    assert parts[: 2 * len(step)] == 2 * step
    assert sum(text.startswith("(epoch") for text in said) == 2
    assert [text for text in said if text.startswith("(step")][:3] == ["(step 2", "(step 3", "(step 4"]


def test_without_the_order_nvtx_hears_nothing(tmp_path: Path, said: list[str]) -> None:
    session = Session(torch, Order(folder=str(tmp_path)))
    session.arm()
    try:
        _train()
    finally:
        session.finish()
        session.disarm()
    assert said == []
