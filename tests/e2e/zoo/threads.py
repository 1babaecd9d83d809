"""The training runs in a thread of its own; the main thread takes its news from a queue and joins it."""

import queue
import threading

import torch
from torch import nn

news = queue.Queue()


def train():
    torch.manual_seed(37)
    model = nn.Sequential(nn.Linear(9, 9), nn.ReLU(), nn.Linear(9, 1))
    optimizer = torch.optim.Adamax(model.parameters())
    for _ in range(6):
        loss = model(torch.randn(13, 9)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        news.put(loss.item())
    news.put(None)


trainer = threading.Thread(target=train, name="trainer")
trainer.start()
while (loss := news.get()) is not None:
    print("loss", loss.hex())
trainer.join()
print("joined", trainer.name)
