"""Two ranks, started by the script itself, that agree on a free port."""

import os
import socket

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def kept_port():
    """Nobody else is given it before the first rank listens there."""
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    return kept


def train(rank, world_size):
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    torch.manual_seed(47)
    data = TensorDataset(torch.randn(24, 8), torch.randn(24, 2))
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = DistributedSampler(data, shuffle=True, seed=1)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in DataLoader(data, batch_size=4, sampler=sampler):
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            both = [torch.zeros(()) for _ in range(world_size)]
            dist.all_gather(both, loss.detach())
            if rank == 0:
                print("losses", *(one.item().hex() for one in both), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    port = kept_port()
    os.environ["MASTER_PORT"] = str(port.getsockname()[1])
    torch.multiprocessing.spawn(train, args=(2,), nprocs=2)
    port.close()
    print("both ranks are done")
