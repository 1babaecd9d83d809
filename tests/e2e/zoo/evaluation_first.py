"""Looks at the score before the first step and after every third; now with no_grad, now in inference mode."""

import torch
from torch import nn

torch.manual_seed(21)
model = nn.Sequential(nn.Linear(5, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
held_out = torch.randn(40, 5)


def evaluate(mode):
    model.eval()
    with mode():
        scores = [(model(part) - part.sum(1, keepdim=True)).square().mean() for part in held_out.split(20)]
    model.train()
    return torch.stack(scores).mean().item()


print("score", evaluate(torch.inference_mode).hex())
for step in range(1, 10):
    x = torch.randn(6, 5)
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
    if step % 3 == 0:
        print("score", evaluate(torch.no_grad if step % 2 else torch.inference_mode).hex())
