"""A GradScaler skips the update whose gradients are infinite."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for number in range(6):
    x = torch.randn(5, 8)
    loss = model(x).square().mean()
    if number == 2:
        loss = loss * float("inf")
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print("scale", scaler.get_scale())
