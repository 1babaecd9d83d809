"""DataLoaders of a script, followed in place: in which pass each is, how many batches the loop has had, and
from which random numbers the pass was drawn.

In a life that only comes back to where it was, samplers draw as they did, and the data set is not asked: the
first batch of each size comes again and again; but for the last few, which a loop that fetches ahead (that of
Accelerate, say) has not used yet. Workers get the random numbers that they had, before the first new batch.
"""

import functools
import importlib
import os
import weakref
from collections.abc import Callable
from typing import Any

from flatout.inside.tap import Patch, undo_all, unseen
from flatout.runtime.checkpoint.position import Carried, Numbers
from flatout.runtime.checkpoint.random_states import put_back, random_states

# So many batches may have been fetched before the loop wants them.
_AHEAD = 4


class Void(list[Any]):
    """The indices of a batch that the loop has had; `random`: of each worker, what it has afterwards."""

    random: dict[int, Any] | None = None
    # Whether the loop may look at it yet.
    is_wanted = False

    def __reduce__(self) -> Any:
        return _void, (list(self), self.random, self.is_wanted)


def _void(indices: list[Any], random: dict[int, Any] | None, is_wanted: bool) -> Void:
    made = Void(indices)
    made.random, made.is_wanted = random, is_wanted
    return made


class _Followed:
    """One loader."""

    def __init__(self, torch: Any, loader: Any) -> None:
        self.numbers = Numbers(torch, loader)
        self.passes = 0
        self.at_start: Any = None
        self.iterator: Any = None
        # Indices that this pass has drawn, and by worker the random numbers after the last batch received.
        self.drawn = 0
        self.random: dict[int, Any] = {}

    def state(self) -> dict[str, Any]:
        iterator = self.iterator() if self.iterator is not None else None
        return {
            "passes": self.passes,
            "batches": iterator._num_yielded if iterator is not None else None,  # noqa: SLF001
            "at_start": self.at_start if iterator is not None else None,
            "generators": self.numbers.now()["generators"],
            "workers": dict(self.random),
        }


class Loaders:
    """All loaders of a script, in the order in which it begins to use them."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._module: Any = importlib.import_module("torch.utils.data.dataloader")
        self._fetch: Any = importlib.import_module("torch.utils.data._utils.fetch")
        self._known: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._followed: list[_Followed] = []
        # Where each was, while the loop is run again.
        self._then: list[dict[str, Any]] | None = None
        # Whose workers are about to get their first batches: there is no iterator yet.
        self._begins: _Followed | None = None
        self._patches: list[Patch] = []
        self._pid = os.getpid()

    def install(self) -> None:
        """Begin to follow."""
        module, fetch = self._module, self._fetch
        base, several = module._BaseDataLoaderIter, module._MultiProcessingDataLoaderIter  # noqa: SLF001
        mapped = fetch._MapDatasetFetcher  # noqa: SLF001
        self._patches = [
            Patch(module.DataLoader, "__iter__", self._iter(module.DataLoader.__iter__)),
            Patch(base, "_next_index", self._next_index(base._next_index)),  # noqa: SLF001
            Patch(several, "_next_data", self._next_data(several._next_data)),  # noqa: SLF001
            Patch(mapped, "fetch", _fetching(mapped.fetch)),
        ]

    def stop(self) -> None:
        """No longer."""
        undo_all(self._patches)

    def state(self) -> list[dict[str, Any]]:
        """Where each stands."""
        return [one.state() for one in self._followed]

    def come_back_to(self, states: list[dict[str, Any]]) -> None:
        """Until `arrived`, passes up to these are void."""
        self._then = states

    def arrived(self) -> None:
        """From here on all is real."""
        for followed, then in zip(self._followed, self._then or (), strict=False):
            followed.numbers.put_back_own(then["generators"])
        self._then = None

    def _of(self, loader: Any) -> tuple[int, _Followed]:
        at = self._known.get(loader)
        if at is None:
            at = self._known[loader] = len(self._followed)
            self._followed.append(_Followed(self._torch, loader))
        return at, self._followed[at]

    def _was(self, at: int) -> dict[str, Any] | None:
        return self._then[at] if self._then is not None and at < len(self._then) else None

    def _iter(self, real: Callable[..., Any]) -> Callable[..., Any]:
        loaders = self

        @functools.wraps(real)
        def __iter__(loader: Any) -> Any:  # noqa: N807
            if os.getpid() != loaders._pid:
                return real(loader)
            at, followed = loaders._of(loader)
            followed.passes += 1
            followed.drawn = 0
            if not loader.persistent_workers:
                followed.random = {}
            was = loaders._was(at)
            if was is not None and followed.passes == was["passes"] and was["at_start"] is not None:
                followed.numbers.put_back(was["at_start"])
            followed.at_start = followed.numbers.now()
            loaders._begins = followed
            iterator = real(loader)
            followed.iterator = weakref.ref(iterator)
            iterator._flatout = at  # noqa: SLF001
            return iterator

        return unseen(__iter__)

    def _next_index(self, real: Callable[..., Any]) -> Callable[..., Any]:
        loaders = self

        @functools.wraps(real)
        def _next_index(iterator: Any) -> Any:
            index = real(iterator)
            if loaders._then is None or type(index) is not list:
                return index
            at = getattr(iterator, "_flatout", None)
            followed = loaders._followed[at] if at is not None else loaders._begins
            assert followed is not None
            was = loaders._was(loaders._followed.index(followed))
            followed.drawn += 1
            if was is None or followed.passes > was["passes"]:
                return index
            is_last = followed.passes == was["passes"]
            last = was["batches"] if is_last else None
            if last is not None and followed.drawn > last:
                return index
            void = Void(index)
            void.is_wanted = last is not None and followed.drawn > last - _AHEAD
            if is_last or iterator._persistent_workers:  # noqa: SLF001 - whichever batch is a worker's last
                void.random = was["workers"]
            return void

        return unseen(_next_index)

    def _next_data(self, real: Callable[..., Any]) -> Callable[..., Any]:
        loaders = self

        @functools.wraps(real)
        def _next_data(iterator: Any) -> Any:
            data = real(iterator)
            if not isinstance(data, Carried):
                return data
            at = getattr(iterator, "_flatout", None)
            if at is not None and data.has_drawn:
                loaders._followed[at].random[data.worker] = data.random
            return data.batch

        return unseen(_next_data)


# In the process that loads: the first batch of each size, by data set; a worker's numbers before its first.
_first: dict[Any, Any] = {}
_began: list[Any] = []


def _fetching(real: Callable[..., Any]) -> Callable[..., Any]:
    """In the loop's process, and in each worker."""

    @functools.wraps(real)
    def fetch(fetcher: Any, index: Any) -> Any:
        import torch
        from torch.utils.data import get_worker_info

        worker = get_worker_info()
        if worker is not None and not _began:
            _began.append(random_states(torch))
        if type(index) is Void:
            batch = _had(real, fetcher, index)
            if worker is not None and index.random and worker.id in index.random:
                put_back(torch, index.random[worker.id])
                return Carried(batch, worker.id, index.random[worker.id], has_drawn=True)
            return batch
        batch = real(fetcher, index)
        if worker is None:
            return batch
        random = random_states(torch)
        has_drawn = [random] != _began
        return Carried(batch, worker.id, random, has_drawn=has_drawn)

    return unseen(fetch)


def _had(real: Callable[..., Any], fetcher: Any, index: Void) -> Any:
    """A batch that the loop has had; random numbers stay where they are."""
    import torch

    key = id(fetcher.dataset), len(index)
    if index.is_wanted:
        before = random_states(torch)
        batch = real(fetcher, list(index))
        put_back(torch, before)
        return batch
    if key not in _first:
        _first[key] = real(fetcher, list(index))
    return _first[key]
