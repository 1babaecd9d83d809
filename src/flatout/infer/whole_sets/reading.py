"""The data set as batches, from any sample on, in its own order."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from flatout.records.errors import CallerMistake


class _From(IterableDataset[Any]):
    """An iterable data set without its first samples: they are read once more, and dropped."""

    def __init__(self, dataset: Any, first: int) -> None:
        self._dataset = dataset
        self._first = first

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(iter(self._dataset), self._first, None)


def length_of(dataset: Any) -> int | None:
    """How many samples there are, where it says so and can be believed."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        return None
    try:
        return len(dataset)
    except TypeError:
        return None


def loader_from(
    dataset: Any, first: int, *, batch_size: int, workers: int, collate: Any, pinned: bool
) -> DataLoader[Any]:
    """Batches from sample `first` on. What can only be iterated over is read by one worker, in order."""
    rest: Dataset[Any]
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        if not hasattr(dataset, "__iter__"):
            raise CallerMistake(
                f"{type(dataset).__name__} is no data set",
                expected="a torch data set, a sequence of samples, or something to iterate over",
                remedy="flatout.batch_inference(module, TensorDataset(inputs), out='outputs')",
            )
        rest, workers = _From(dataset, first), min(workers, 1)
    else:
        rest = Subset(dataset, range(first, len(dataset))) if first else dataset
    return DataLoader(
        rest,
        batch_size=batch_size,
        num_workers=workers,
        collate_fn=collate,
        pin_memory=pinned,
        persistent_workers=False,
        generator=torch.Generator(),
    )


def readings(dataset: Any, places: Sequence[int], workers: int) -> list[Any]:
    """The samples at these places; for those that cannot be read, what went wrong.

    Read as all of them will be: files that a data set opens in this process could not be shared by workers.
    """
    loader = DataLoader(
        Subset(dataset, places),
        batch_size=None,
        num_workers=min(workers, 1),
        collate_fn=_as_it_is,
        generator=torch.Generator(),
    )
    found: list[Any] = []
    try:
        found.extend(loader)
    except Exception as error:  # noqa: BLE001 - the run itself will meet it, and tell
        found.extend([error] * (len(places) - len(found)))
    return found


def _as_it_is(sample: Any) -> Any:
    return sample
