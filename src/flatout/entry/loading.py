"""`flatout.prefetch` and `flatout.loader_settings`: batches that are there when the step wants them."""

import collections
import dataclasses
import time
from collections.abc import Iterable, Iterator
from typing import Any

from flatout.hardware.host import read_host
from flatout.inside.overrides import refusal_of_workers
from flatout.levers.prefetching import Prefetched
from flatout.records.errors import CallerMistake
from flatout.runtime.sweep import worker_counts

_OF_THE_SAMPLER = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last")
# More workers must bring this much more to be worth their memory.
_WORTH = 0.05


def prefetch(loader: Iterable[Any], device: Any) -> Prefetched:
    """The loader's batches, on the device, the next one on its way while this one is worked on.

        for images, labels in flatout.prefetch(loader, "cuda"):
            ...   # no .to(device)

    Tensors in any nesting are moved: tuples, dicts, named tuples, dataclasses. The copy runs on a stream of
    its own, and nobody waits for it but the device. It is truly asynchronous from pinned memory only
    (`pin_memory=True`). With workers, the next batch is fetched ahead as soon as it is ready.
    """
    return Prefetched(loader, device)


@dataclasses.dataclass(frozen=True)
class Tried:
    """One number of workers, and what it gave."""

    num_workers: int
    samples_per_s: float


@dataclasses.dataclass(frozen=True)
class LoaderSettings:
    """Settings for a DataLoader: `DataLoader(data_set, batch_size=32, **found.settings)`."""

    settings: dict[str, Any]
    reason: str
    tried: tuple[Tried, ...]


def loader_settings(
    data_set: Any,
    *,
    batch_size: int = 1,
    samples_per_s: float | None = None,
    seconds: float = 2.0,
    **more: Any,
) -> LoaderSettings:
    """How many workers this data set wants on this machine, by trying.

        found = flatout.loader_settings(data_set, batch_size=64, samples_per_s=900)
        loader = DataLoader(data_set, batch_size=64, shuffle=True, **found.settings)

    `samples_per_s` is what the training step takes: the fewest workers that deliver it are chosen, and
    without it the fewest within 5 % of the fastest. Each count is tried for `seconds` after its start, up to
    the cores that this process may use. `more` goes to the DataLoader (collate_fn, sampler, ...). A data set
    that would yield everything twice, or that holds tensors on a GPU, gets none. Workers live on from pass to
    pass unless the data set has a `set_epoch`: take `persistent_workers` out where your loop changes the data
    set between passes in another way, for they would not hear of it.
    """
    import torch

    pinned = {"pin_memory": True} if torch.cuda.is_available() else {}
    refusal = refusal_of_workers(data_set, 1, 0)
    if refusal:
        return LoaderSettings({"num_workers": 0, **pinned}, refusal, ())
    tried: list[Tried] = []
    for count in worker_counts(read_host(places=())):
        tried.append(Tried(count, _rate(data_set, count, batch_size, seconds, {**pinned, **more})))
        if samples_per_s is not None and tried[-1].samples_per_s >= samples_per_s:
            break
    fastest = max(one.samples_per_s for one in tried)
    enough = fastest * (1 - _WORTH)
    if samples_per_s is not None and fastest >= samples_per_s:
        enough = samples_per_s
    chosen = next(one for one in tried if one.samples_per_s >= enough)
    settings: dict[str, Any] = {"num_workers": chosen.num_workers, **pinned}
    if chosen.num_workers and not hasattr(data_set, "set_epoch"):
        settings["persistent_workers"] = True
    if samples_per_s is not None and chosen.samples_per_s < samples_per_s:
        reason = f"no count delivers {samples_per_s:g} samples/s; {chosen.num_workers} workers come nearest"
    else:
        reason = f"the fewest workers that deliver {chosen.samples_per_s:.0f} samples/s"
    return LoaderSettings(settings, reason, tuple(tried))


def _rate(data_set: Any, workers: int, batch_size: int, seconds: float, more: dict[str, Any]) -> float:
    """Samples a second once the first batches are there; a data set that ends too soon begins again."""
    loader, sizes = _sized_loader(data_set, workers, batch_size, more)
    batches = iter(loader)
    # Every worker has its first batches lying ready by then: those do not count, if others come in time.
    warm = 2 * workers + 1
    seen = samples = before = in_this_pass = 0
    started = began = time.perf_counter()
    deadline = started + 10 * seconds
    while True:
        now = time.perf_counter()
        if now > deadline or (seen > warm and now - began >= seconds):
            break
        try:
            next(batches)
        except StopIteration:
            if not in_this_pass:
                raise CallerMistake(
                    "the data set yields no batch",
                    expected="one with some samples, or with a whole batch of them where drop_last is set",
                    remedy="len(data_set), and one pass over its loader, show what is there",
                ) from None
            batches, in_this_pass = iter(loader), 0
            continue
        seen, in_this_pass = seen + 1, in_this_pass + 1
        samples += sizes.popleft() if sizes else batch_size
        if seen == warm:
            before, began = samples, time.perf_counter()
    if seen <= warm:
        before, began = 0, started
    return (samples - before) / max(1e-9, time.perf_counter() - began)


def _sized_loader(
    data_set: Any, workers: int, batch_size: int, more: dict[str, Any]
) -> tuple[Any, collections.deque[int]]:
    """A loader, and the sizes of its batches as they are asked for, where a sampler asks for them."""
    from torch.utils.data import DataLoader, IterableDataset

    own = {} if "batch_sampler" in more else {"batch_size": batch_size}
    settings = {"num_workers": workers, "persistent_workers": workers > 0, **own, **more}
    loader = DataLoader(data_set, **settings)
    sizes: collections.deque[int] = collections.deque()
    if isinstance(data_set, IterableDataset) or loader.batch_sampler is None:
        return loader, sizes
    asked = _Asked(loader.batch_sampler, sizes)
    others = {name: value for name, value in settings.items() if name not in _OF_THE_SAMPLER}
    return DataLoader(data_set, batch_sampler=asked, **others), sizes


class _Asked:
    """A batch sampler that notes how many samples each batch has, in the order in which they will come."""

    def __init__(self, batches: Any, sizes: collections.deque[int]) -> None:
        self._batches, self._sizes = batches, sizes

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            self._sizes.append(len(batch))
            yield batch
