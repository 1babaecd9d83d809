"""Warns, from torch and by itself; each warning names a line that is found by counting frames."""

import warnings

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        if x.shape[0] == 1:
            warnings.warn("a batch of one", stacklevel=2)
        return self.layer(x)


torch.manual_seed(53)
model = Net()
model.register_full_backward_hook(lambda *_: None)  # warns: the input needs no gradient
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
scheduler.step()  # warns: too early
for _ in range(4):
    output = model(torch.randn(1, 3))
    loss = nn.functional.mse_loss(output, torch.zeros(2))  # warns: shapes are broadcast
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    print("loss", loss.item().hex())
