"""How a loader is set up, also where its batches are made by a sampler."""

from types import SimpleNamespace

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, SequentialSampler, TensorDataset

from flatout.inside.loader import _describe, _size_by

DATA = TensorDataset(torch.arange(12))


def test_batches_of_a_sampler_have_its_size() -> None:
    by_sampler = DataLoader(DATA, batch_sampler=BatchSampler(SequentialSampler(DATA), 4, drop_last=False))
    assert _describe(by_sampler)["batch_size"] == _describe(DataLoader(DATA, batch_size=4))["batch_size"] == 4


def test_of_batches_that_ranks_share_each_has_its_part() -> None:
    assert _size_by(SimpleNamespace(batch_size=8, split_batches=True, num_processes=2)) == 4
    assert _size_by(SimpleNamespace(batch_size=8, split_batches=False, num_processes=2)) == 8


def test_a_data_set_without_a_length_has_none() -> None:
    class Unbounded(Dataset):  # type: ignore[type-arg]
        def __getitem__(self, place: int) -> int:
            return place

    assert _describe(DataLoader(Unbounded(), sampler=[1, 2, 3]))["samples"] is None
    assert _describe(DataLoader(DATA))["samples"] == 12


def test_batches_of_changing_sizes_have_none() -> None:
    assert _describe(DataLoader(DATA, batch_sampler=[[0, 1], [2, 3, 4]]))["batch_size"] is None
