"""Asks for the learning rate, and takes its own when nobody answers."""

import sys

import torch
from torch import nn

try:
    rate = float(input("learning rate? "))
except (EOFError, ValueError):
    rate = 0.03
print("\nuses", rate, "rest", repr(sys.stdin.read()))
torch.manual_seed(29)
model = nn.Bilinear(3, 3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=rate)
for _ in range(4):
    a, b = torch.randn(2, 6, 3)
    loss = nn.functional.mse_loss(model(a, b), (a * b).sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
