"""One stage of two, told by its environment what to do; see train.sh."""

import os
import sys

import torch
from torch import nn

stage, steps = sys.argv[1], int(sys.argv[2])
torch.manual_seed(len(stage))
model = nn.Sequential(nn.Linear(7, 7), nn.GELU(), nn.Linear(7, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=float(os.environ["LEARNING_RATE"]))
print("stage", stage, "at", optimizer.param_groups[0]["lr"], "in", os.path.basename(os.getcwd()))
for _ in range(steps):
    loss = model(torch.randn(2, 7)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
