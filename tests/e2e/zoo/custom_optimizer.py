"""An optimizer of its own: the sign of a momentum, with weight decay."""

import torch
from torch import nn
from torch.optim import Optimizer


class Sign(Optimizer):
    def __init__(self, params, lr=1e-3, beta=0.9, decay=0.01):
        super().__init__(params, dict(lr=lr, beta=beta, decay=decay))

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["momentum"] = torch.zeros_like(p)
                state["momentum"].lerp_(p.grad, 1 - group["beta"])
                p.mul_(1 - group["lr"] * group["decay"])
                p.add_(state["momentum"].sign(), alpha=-group["lr"])
        return loss


torch.manual_seed(23)
model = nn.Sequential(nn.Linear(4, 10), nn.LeakyReLU(), nn.Linear(10, 1))
frozen = nn.Linear(4, 1).requires_grad_(False)
optimizer = Sign([{"params": model[0].parameters(), "lr": 3e-3}, {"params": model[2].parameters()}])
for _ in range(8):
    x = torch.randn(11, 4)
    loss = nn.functional.mse_loss(model(x), frozen(x))
    optimizer.zero_grad()
    loss.backward()
    print("loss", loss.item().hex(), flush=True)
    optimizer.step()
