"""Accelerate's loop, alone or as one of several ranks; the first argument is the micro-batches of an update."""

import sys

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parts = int(sys.argv[1])
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=parts)
set_seed(71)
x = torch.randn(48, 5)
data = TensorDataset(x, x.square().sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(5, 10), nn.Tanh(), nn.Linear(10, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = DataLoader(data, batch_size=4, shuffle=True)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
for x, y in loader:
    with accelerator.accumulate(model):
        loss = nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    accelerator.print("loss", (loss.detach() / parts).item().hex())
everyone = accelerator.gather(loss.detach().reshape(1)).tolist()
accelerator.print("ranks", accelerator.num_processes, "last", [one.hex() for one in everyone])
accelerator.wait_for_everyone()
accelerator.end_training()
