"""Batches are fetched by a thread, ahead of the loop, as prefetching wrappers do."""

import queue
import threading
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, index):
        time.sleep(0.001)
        return torch.full((6,), index / 60)


def ahead(loader, depth=2):
    batches = queue.Queue(depth)

    def fetch():
        for batch in loader:
            batches.put(batch)
        batches.put(None)

    threading.Thread(target=fetch, daemon=True).start()
    while (batch := batches.get()) is not None:
        yield batch


torch.manual_seed(83)
model = nn.Sequential(nn.Linear(6, 200), nn.ReLU(), nn.Linear(200, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for x in ahead(DataLoader(Slow(), batch_size=5)):
    loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
    time.sleep(0.002)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
