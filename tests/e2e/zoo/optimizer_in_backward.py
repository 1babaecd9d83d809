"""Each parameter has its own optimizer, which updates it during the backward pass and frees its gradient."""

import sys

import torch
from torch import nn

torch.manual_seed(43)
blocks = [nn.Sequential(nn.Linear(5, 5), nn.Tanh()) for _ in range(int(sys.argv[1]))]
model = nn.Sequential(nn.Linear(5, 5), *blocks, nn.Linear(5, 5))
optimizers = {p: torch.optim.AdamW([p], lr=1e-2, foreach=False) for p in model.parameters()}


def update(p):
    optimizers[p].step()
    optimizers[p].zero_grad()


for p in model.parameters():
    p.register_post_accumulate_grad_hook(update)

for _ in range(6):
    x = torch.randn(10, 5)
    loss = nn.functional.mse_loss(model(x), x.flip(1))
    loss.backward()
    print("loss", loss.item().hex())
    assert all(p.grad is None for p in model.parameters())
print("optimizers", len(optimizers))
