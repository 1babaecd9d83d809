"""A stream of samples of which each rank takes its turn. Loader workers unpickle it: it stands by itself."""

import itertools
from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset


class EveryNth(IterableDataset[Any]):
    """Of each `count` samples, the one at `rank`. What fills no turn is left out: ranks have as many."""

    def __init__(self, data_set: Any, count: int, rank: int) -> None:
        self._data_set = data_set
        self._count = count
        self._rank = rank

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # not there yet while it is unpickled
            raise AttributeError(name)
        return getattr(self._data_set, name)

    def __iter__(self) -> Iterator[Any]:
        samples = iter(self._data_set)
        while len(turn := list(itertools.islice(samples, self._count))) == self._count:
            yield turn[self._rank]

    def __len__(self) -> int:
        return len(self._data_set) // self._count
