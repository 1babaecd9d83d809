"""Mixed precision of its own: bfloat16 where autocast says so, and clipped gradients."""

import torch
from torch import nn

torch.manual_seed(8)
model = nn.Sequential(nn.Conv1d(2, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True)
for _ in range(6):
    signal, label = torch.randn(8, 2, 16), torch.randint(4, (8,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(signal)
        loss = nn.functional.cross_entropy(logits, label)
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print("loss", loss.item().hex())
    print("norm", norm.item().hex(), logits.dtype, torch.is_autocast_enabled("cpu"))
