"""The script compiles its model itself; nobody may cause it to be compiled again."""

import torch
from torch import nn
from torch._dynamo.utils import counters

torch.manual_seed(0)
model = torch.compile(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1)), backend="eager")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for _ in range(5):
    loss = model(torch.randn(6, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
print("graphs", counters["stats"]["unique_graphs"])
