"""An optimizer that calls a closure several times an update."""

import torch
from torch import nn

torch.manual_seed(0)
x, y = torch.randn(12, 8), torch.randn(12, 1)
model = nn.Linear(8, 1)
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)


def closure():
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    print("loss", loss.item().hex())
    return loss


for _ in range(3):
    optimizer.step(closure)
