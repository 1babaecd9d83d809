"""Module.compile() on the root, and autocast of its own."""

import torch
from torch import nn
from torch._dynamo.utils import counters


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


torch.manual_seed(0)
model = Net()
model.compile(backend="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for _ in range(5):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.randn(6, 8)).float().square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
print("graphs", counters["stats"]["unique_graphs"])
