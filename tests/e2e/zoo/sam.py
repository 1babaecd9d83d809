"""Sharpness-aware minimisation: a step uphill, a second backward pass there, and the update from where it was."""

import torch
from torch import nn


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, rho=0.05, **kwargs):
        super().__init__(params, dict(rho=rho, **kwargs))
        self.base = base(self.param_groups, **kwargs)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def climb(self):
        for group in self.param_groups:
            norm = torch.stack([p.grad.norm() for p in group["params"]]).norm()
            for p in group["params"]:
                self.state[p]["old"] = p.clone()
                p.add_(p.grad, alpha=(group["rho"] / (norm + 1e-12)).item())

    @torch.no_grad()
    def descend(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.copy_(self.state[p]["old"])
        self.base.step()

    @torch.no_grad()
    def step(self, closure):
        self.climb()
        self.zero_grad()
        torch.enable_grad()(closure)()
        self.descend()


torch.manual_seed(31)
model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 2))
optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=6)
for _ in range(6):
    x, y = torch.randn(8, 6), torch.randint(2, (8,))

    def closure():
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        print("loss", loss.item().hex())
        return loss

    optimizer.zero_grad()
    closure()
    optimizer.step(closure)
    scheduler.step()
print("rate", scheduler.get_last_lr()[0].hex())
