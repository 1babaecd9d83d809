import sys

import torch
from torch.utils.data import DataLoader

from . import __doc__ as about
from .data import Squares
from .model import Net


def main(width):
    torch.manual_seed(0)
    model = Net(width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for x, y in DataLoader(Squares(), batch_size=5, shuffle=True):
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss", loss.item().hex())


if __name__ == "__main__":
    print(about)
    print(sys.argv[1:], __name__, __package__, __spec__.name, Net.__module__)
    main(int(sys.argv[1]))
