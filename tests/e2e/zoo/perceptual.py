"""A small network that is taught by a larger, frozen one: what counts is what reaches the one that learns."""

import torch
from torch import nn

torch.manual_seed(73)
painter = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 3, padding=1))
judge = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 16, 3), nn.Flatten()).eval()
judge.requires_grad_(False)
optimizer = torch.optim.Adam(painter.parameters(), lr=1e-3)
for _ in range(5):
    blurred, sharp = torch.randn(2, 3, 1, 8, 8)
    painted = painter(blurred)
    with torch.no_grad():
        wanted = judge(sharp)
    mirrored = judge(torch.cat([painted, painted.flip(3)]))
    loss = nn.functional.l1_loss(painted, sharp) + (mirrored - wanted.repeat(2, 1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
