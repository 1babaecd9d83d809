"""Four micro-batches make one update."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 8), torch.randn(96, 1))
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for number, (x, y) in enumerate(DataLoader(data, batch_size=4), 1):
    loss = nn.functional.mse_loss(model(x), y) / 4
    loss.backward()
    print("loss", loss.item().hex())
    if number % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
