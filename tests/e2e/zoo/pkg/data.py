import torch
from torch.utils.data import Dataset


class Squares(Dataset):
    """Every item is a function of its number."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        x = torch.arange(4.0) * index / 20
        return x, x.square().sum(0, keepdim=True)
