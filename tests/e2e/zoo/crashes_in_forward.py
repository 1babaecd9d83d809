"""Its fourth batch does not fit the model."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.inner(x))


def main():
    torch.manual_seed(59)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for width in (4, 4, 4, 5, 4):
        loss = model(torch.randn(2, width)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss", loss.item().hex())


main()
