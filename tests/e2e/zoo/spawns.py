"""Two processes that train, each for itself, by mp.spawn and by fork."""

import os

import torch
from torch import nn


def train(rank, updates):
    torch.manual_seed(rank)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(updates):
        optimizer.zero_grad()
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()


if __name__ == "__main__":
    torch.multiprocessing.spawn(train, args=(4,), nprocs=2)
    train(5, 3)
    child = os.fork()
    if child == 0:
        train(9, 6)
        raise SystemExit(0)
    os.waitpid(child, 0)
    print("done")
