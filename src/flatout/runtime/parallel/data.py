"""Which samples each rank sees: a loader's own sampler gives way to one that knows of the ranks.

It is exchanged in place, and put back at the end. The order of an epoch is that of torch's own
DistributedSampler for the same seed; epochs count themselves.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from flatout.records.errors import CallerMistake
from flatout.runtime.parallel.joining import Joined
from flatout.runtime.parallel.wrapped import Data


@dataclasses.dataclass(frozen=True)
class Placed:
    """What was done with a loader, in words, and what undoes it."""

    words: str
    undo: Callable[[], None]


def place(loader: Any, joined: Joined, data: Data, *, shard_iterable: bool, keep_batch: bool) -> Placed:
    """Give each rank its part of the loader's data, or all of them the same batches."""
    if loader is None or joined.count == 1 or data == "as it is":
        return Placed("", lambda: None)
    import torch

    from flatout.runtime.parallel.samplers import RankSampler

    if not isinstance(loader, torch.utils.data.DataLoader):
        raise CallerMistake(
            f"a loader that is a {type(loader).__qualname__}",
            expected="a torch.utils.data.DataLoader",
            remedy="give each rank its part yourself, by `.rank` and `.count`, and leave loader out",
        )
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        return _place_iterable(loader, joined, data, wanted=shard_iterable)
    found = _insist_on_known(torch, loader)
    if found == "distributed":
        return _own(loader, joined, data)
    ranks, rank = (joined.count, joined.rank) if data == "apart" else (1, 0)
    sampler = RankSampler(
        loader.dataset,
        num_replicas=ranks,
        rank=rank,
        shuffle=found == "random",
        seed=_seed_of_first(loader, joined),
        drop_last=loader.drop_last,
    )
    undo = _exchange(loader, sampler, joined.count if keep_batch and data == "apart" else 1)
    return Placed(_words(loader, ranks), undo)


def _insist_on_known(torch: Any, loader: Any) -> str:
    data = torch.utils.data
    batches = loader.batch_sampler
    if batches is not None and type(batches) is not data.BatchSampler:
        raise CallerMistake(
            f"a loader with a batch sampler of its own ({type(batches).__qualname__})",
            expected="batches that the loader makes from samples: nobody else knows how to divide yours",
            remedy="let it give each rank its batches, by `.rank` and `.count`, and leave loader out",
        )
    sampler = loader.sampler
    if isinstance(sampler, data.DistributedSampler):
        return "distributed"
    if type(sampler) is data.SequentialSampler:
        return "sequential"
    if type(sampler) is data.RandomSampler and not sampler.replacement and sampler._num_samples is None:  # noqa: SLF001
        return "random"
    raise CallerMistake(
        f"a loader with a sampler of its own ({type(sampler).__qualname__})",
        expected="samples in order or shuffled: nobody else knows what yours means on several ranks",
        remedy="let it draw for one rank, by `.rank` and `.count`, and leave loader out",
    )


def _own(loader: Any, joined: Joined, data: Data) -> Placed:
    """A DistributedSampler that the script made: it stays, if it is right."""
    sampler = loader.sampler
    right = (joined.count, joined.rank) if data == "apart" else (1, 0)
    if (sampler.num_replicas, sampler.rank) != right:
        raise CallerMistake(
            f"a DistributedSampler for rank {sampler.rank} of {sampler.num_replicas}",
            expected=f"one for rank {right[1]} of {right[0]}: with this strategy ranks see "
            + ("different samples" if data == "apart" else "the same samples"),
            remedy="leave the sampler out: flatout.parallel puts the right one in",
        )
    return Placed("the loader's own DistributedSampler stays: call its set_epoch", lambda: None)


def _seed_of_first(loader: Any, joined: Joined) -> int:
    """What the first rank would have shuffled with, on all ranks."""
    import torch

    own = getattr(loader.sampler, "generator", None) or loader.generator
    seed = own.initial_seed() if own is not None else torch.initial_seed()
    # Room for epochs: generators take 64 bits.
    return int(joined.of_first(seed % 2**62))


def _exchange(loader: Any, sampler: Any, divide_by: int) -> Callable[[], None]:
    # DataLoader refuses to have these set: what it guards against is a loader at odds with itself.
    mine, batches = vars(loader), loader.batch_sampler
    found = {name: mine.get(name) for name in ("sampler", "batch_size")}
    size = loader.batch_size
    if divide_by > 1:
        if size is None or size % divide_by:
            raise CallerMistake(
                f"keep_batch=True with batches of {size} and {divide_by} ranks",
                expected="a batch that divides evenly",
                remedy=f"choose a batch size that is a multiple of {divide_by}",
            )
        size //= divide_by
    mine["sampler"], mine["batch_size"] = sampler, size
    if batches is not None:
        before = batches.sampler, batches.batch_size
        batches.sampler, batches.batch_size = sampler, size
    mine["_iterator"] = None  # workers that persist have the old batches under way

    def undo() -> None:
        mine.update(found)
        mine["_iterator"] = None
        if batches is not None:
            batches.sampler, batches.batch_size = before

    return undo


def _words(loader: Any, ranks: int) -> str:
    if ranks == 1:
        return "all ranks read the same batches"
    left = len(loader.dataset) % ranks
    if not left:
        tail = "each sample once an epoch"
    elif loader.drop_last:
        tail = f"{left} samples at the end of each epoch's order are left out"
    else:
        tail = f"{ranks - left} samples come twice an epoch, so that ranks have as many"
    return f"each rank reads 1/{ranks} of the samples: {tail}"


def _place_iterable(loader: Any, joined: Joined, data: Data, *, wanted: bool) -> Placed:
    if data == "alike":
        return Placed("the iterable data set must yield the same on all ranks", lambda: None)
    if not wanted:
        raise CallerMistake(
            "a loader over an IterableDataset, which yields the same on every rank",
            expected="a data set that yields each rank's part, or that Flatout may divide",
            remedy=f"shard_iterable=True: each rank takes every {joined.count}th sample; or leave loader out",
        )
    from flatout.runtime.parallel.streams import EveryNth

    mine, found = vars(loader), loader.dataset
    mine["dataset"] = EveryNth(found, joined.count, joined.rank)
    mine["_iterator"] = None
    words = f"each rank takes every {joined.count}th sample of the stream; what fills no turn is left out"

    def undo() -> None:
        mine["dataset"], mine["_iterator"] = found, None

    return Placed(words, undo)
