"""argparse, a signal handler of its own, a catch-all, an exit code."""

import argparse
import signal
import sys

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=4)
chosen = parser.parse_args()
signal.signal(signal.SIGTERM, lambda *_: print("got it"))
model = nn.Linear(4, 1)
torch.manual_seed(0)
nn.init.ones_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
try:
    for _ in range(chosen.steps):
        loss = model(torch.ones(3, 4)).sum()
        loss.backward()
        optimizer.step()
    raise KeyboardInterrupt
except BaseException as error:
    print("caught", type(error).__name__, __name__, sys.argv[1:])
signal.raise_signal(signal.SIGTERM)
sys.exit(3)
