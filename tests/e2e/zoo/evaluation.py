"""Evaluates before the first update, and in between."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)


@torch.no_grad()
def evaluate():
    model.eval()
    score = sum(model(torch.randn(32, 8)).mean().item() for _ in range(3))
    model.train()
    return score


for number in range(6):
    if number % 2 == 0:
        print("score", evaluate().hex())
    loss = model(torch.randn(7, 8)).square().mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
