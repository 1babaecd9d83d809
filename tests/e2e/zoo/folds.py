"""Cross-validation: a new model and a new optimizer for each of three folds, in one process."""

import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

torch.manual_seed(79)
x = torch.randn(45, 4)
data = TensorDataset(x, x.abs().sum(1, keepdim=True))
folds = [Subset(data, range(start, start + 15)) for start in (0, 15, 30)]


def fit(data):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for inputs, targets in DataLoader(data, batch_size=6, shuffle=True):
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss", loss.item().hex())
    return model.eval()


for held_out in folds:
    model = fit(ConcatDataset([fold for fold in folds if fold is not held_out]))
    with torch.no_grad():
        errors = [(model(inputs) - target).abs().item() for inputs, target in held_out]
    print("error", (sum(errors) / len(errors)).hex())
