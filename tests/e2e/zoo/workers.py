"""An iterable data set, shared among worker processes that it knows of."""

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Numbers(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        for number in range(info.id, 24, info.num_workers):
            generator = torch.Generator().manual_seed(number)
            yield torch.randn(8, generator=generator)


def main():
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for x in DataLoader(Numbers(), batch_size=4, num_workers=2):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss", loss.item().hex())


if __name__ == "__main__":
    main()
