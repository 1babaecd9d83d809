"""A loop with Accelerate as people write it: accumulation, clipping, a schedule, evaluation, save_state."""

import hashlib, os, signal
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(gradient_accumulation_steps=2)
set_seed(9)
x = torch.randn(88, 5)
train = DataLoader(TensorDataset(x[:68], x[:68].prod(1, keepdim=True)), batch_size=4, shuffle=True)
test = DataLoader(TensorDataset(x[68:], x[68:].prod(1, keepdim=True)), batch_size=4)
model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 30)
model, optimizer, train, test, schedule = accelerator.prepare(model, optimizer, train, test, schedule)
updates, total = 0, torch.zeros(())
for epoch in range(3):
    model.train()
    for inputs, targets in train:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            total += loss.detach()
        if accelerator.sync_gradients:
            updates += 1
            if os.environ.get("DIES_AT") == str(updates):
                os.kill(os.getpid(), signal.SIGKILL)
    model.eval()
    with torch.no_grad():
        losses = [accelerator.gather_for_metrics(nn.functional.mse_loss(model(a), b)) for a, b in test]
    accelerator.print("epoch", epoch, torch.stack(losses).mean().item(), total.item(), flush=True)
    accelerator.save_state(f"states/epoch-{epoch}")
bits = b"".join(one.detach().numpy().tobytes() for one in model.parameters())
accelerator.print("end", hashlib.sha256(bits).hexdigest(), updates, total.item())
