"""Dies of an error of its own after three updates."""

import torch
from torch import nn

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(9):
    if number == 3:
        raise ValueError("the data is broken")
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
