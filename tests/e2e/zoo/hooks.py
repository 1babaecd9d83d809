"""Hooks of its own, of every kind: forward, backward, on a tensor and on the optimizer."""

import torch
from torch import nn

torch.manual_seed(41)
model = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
seen = []

model.register_forward_pre_hook(lambda module, args: seen.append(("root before", tuple(args[0].shape))))
model.register_forward_hook(lambda module, args, output: output * 2)
model[0].register_forward_hook(lambda module, args, output: seen.append(("first", output.mean().item())))
model[2].register_full_backward_hook(lambda module, got, gave: seen.append(("last", gave[0].sum().item())))
model.register_full_backward_hook(
    lambda module, got, gave: seen.append(("root", gave[0].shape[0], got[0].sum().item()))
)
model[0].weight.register_hook(lambda grad: grad.clamp(-0.5, 0.5))
optimizer.register_step_pre_hook(lambda *_: seen.append(("before the update",)))
optimizer.register_step_post_hook(lambda *_: seen.append(("after the update",)))

for _ in range(5):
    loss = model(torch.randn(7, 6, requires_grad=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
    print(seen)
    seen.clear()
print([len(getattr(model, name)) for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")])
