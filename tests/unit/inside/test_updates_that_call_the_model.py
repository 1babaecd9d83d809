"""Updates with a closure, as Lightning makes them: the model is called inside of the first one already."""

import json
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from flatout.inside.session import Session
from flatout.records.session import INSPECTION_FILE, TAPS, Order


def train(updates: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters())

    def closure() -> float:
        loss = model(torch.randn(5, 3)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        return loss.item()

    for _ in range(updates):
        optimizer.step(closure)


def test_parameters_have_their_names_and_gone_optimizers_are_remembered(tmp_path: Path) -> None:
    order = Order(folder=str(tmp_path), inspect_updates=3, taps=(*TAPS, "habits"))
    session = Session(torch, order)
    session.arm()
    try:
        train(4)  # its optimizer is gone when the session ends
        session.finish()
        seen = json.loads((session.folder() / INSPECTION_FILE).read_text())["parameters"]
    finally:
        session.disarm()
    assert [one["name"] for one in seen] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert all(one["updates_with_gradient"] for one in seen)
    assert [one["name"] for one in session.facts["habits"]["optimizers"]] == ["AdamW"]


def test_what_two_taps_have_covered_is_found_again(tmp_path: Path) -> None:
    found = DataLoader.__iter__
    session = Session(torch, Order(folder=str(tmp_path), loader={"num_workers": 0}))
    session.arm()
    assert DataLoader.__iter__ is not found
    list(DataLoader(TensorDataset(torch.arange(3.0))))
    session.disarm()
    assert DataLoader.__iter__ is found
