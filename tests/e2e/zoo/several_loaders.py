"""Few labels and many pictures without: two loaders side by side, and a third to validate with."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(11)
labelled = DataLoader(TensorDataset(torch.randn(24, 10), torch.randint(3, (24,))), batch_size=4, shuffle=True)
unlabelled = DataLoader(TensorDataset(torch.randn(60, 10)), batch_size=12, shuffle=True)
validation = DataLoader(TensorDataset(torch.randn(18, 10), torch.randint(3, (18,))), batch_size=9)
model = nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

for epoch in range(2):
    model.train()
    for (x, y), (u,) in zip(labelled, unlabelled):
        supervised = nn.functional.cross_entropy(model(x), y)
        clean = model(u).softmax(1)
        entropy = -(clean * clean.clamp_min(1e-6).log()).sum(1).mean()
        loss = supervised + 0.1 * entropy
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        print("loss", loss.item().hex())
    model.eval()
    with torch.no_grad():
        right = sum((model(x).argmax(1) == y).sum().item() for x, y in validation)
    print("epoch", epoch, "right", right, "of", len(validation.dataset))
