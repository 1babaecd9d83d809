"""A stream of random walks: two workers with a shard and a seed each, for two epochs."""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

WALKS = 30


class Walks(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        first, stride = (0, 1) if info is None else (info.id, info.num_workers)
        for _ in range(first, WALKS, stride):
            walk = torch.randn(12).cumsum(0) + random.gauss(0, 1)
            yield walk[:-1], walk[-1:]


def seed_worker(worker_id):
    random.seed(torch.initial_seed() % 2**32)


def main():
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(11, 6), nn.ReLU(), nn.Linear(6, 1))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    loader = DataLoader(Walks(), batch_size=5, num_workers=2, worker_init_fn=seed_worker)
    for _ in range(2):
        for past, future in loader:
            optimizer.zero_grad()
            loss = nn.functional.smooth_l1_loss(model(past), future)
            loss.backward()
            optimizer.step()
            print("loss", loss.item().hex())


if __name__ == "__main__":
    main()
