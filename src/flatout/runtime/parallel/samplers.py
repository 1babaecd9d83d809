"""A sampler that knows of ranks and counts its epochs. Loader workers may carry it: it stands by itself."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DistributedSampler


class RankSampler(DistributedSampler[Any]):
    """A DistributedSampler whose epochs count themselves, unless somebody calls set_epoch."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Its seed is what the next epoch is shuffled with. Whoever keeps the place in the data keeps
        # generators, and so this, for a run that would begin with another seed.
        self.generator = torch.Generator()
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """The next pass is this one."""
        super().set_epoch(epoch)
        self.generator.manual_seed(self.seed + epoch)

    def __iter__(self) -> Iterator[Any]:
        # When the first sample is asked for: loaders ask for iterators that they never use.
        seed = self.generator.initial_seed()
        super().set_epoch(seed - self.seed)
        self.generator.manual_seed(seed + 1)
        yield from super().__iter__()
