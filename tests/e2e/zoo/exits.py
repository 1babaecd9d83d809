"""Wants a flag, trains until its budget is gone, and leaves with a code that its caller knows."""

import argparse
import sys

import torch
from torch import nn

parser = argparse.ArgumentParser(prog="exits", description="fits a line")
parser.add_argument("--rate", type=float, required=True)
parser.add_argument("--budget", type=int, default=4)
parser.add_argument("--shape", choices=("line", "curve"), default="line")
args = parser.parse_args()

torch.manual_seed(2)
model = (
    nn.Linear(3, 1) if args.shape == "line" else nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
)
optimizer = torch.optim.SGD(model.parameters(), lr=args.rate)
for step in range(100):
    if step == args.budget:
        print("out of budget")
        sys.exit(5)
    x = torch.randn(9, 3)
    loss = (model(x) - x.mean(1, keepdim=True)).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
print("never printed")
