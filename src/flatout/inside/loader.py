"""The loader tap: how long the training loop waits for a DataLoader, and how that loader is set up.

Methods are patched, not wrapped: iterators keep their type, their attributes and their identity.
"""

import contextlib
import functools
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flatout.inside.tap import Patch, clock, thread, undo_all, unseen

if TYPE_CHECKING:
    from flatout.inside.session import Session

_SETTINGS = ("batch_size", "num_workers", "pin_memory", "prefetch_factor", "persistent_workers", "drop_last")
_STARTING = -1
_ENDING = -2


class LoaderTap:
    """Logs the time in `next()`, and in starting and ending an iterator."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._patches: list[Patch] = []
        self._settings: list[dict[str, Any]] = []
        # Which loader an iterator belongs to, without leaving anything on the iterator.
        self._numbers: dict[int, int] = {}

    def install(self) -> None:
        """Patch the one `next` that every kind of DataLoader iterator shares, and `iter` of the loader."""
        module: Any = importlib.import_module("torch.utils.data.dataloader")
        base, loader = module._BaseDataLoaderIter, module.DataLoader  # noqa: SLF001
        self._patches = [
            Patch(base, "__next__", self._following(base.__next__)),
            Patch(loader, "__iter__", self._starting(loader.__iter__)),
        ]

    def remove(self) -> None:
        """Put the methods back."""
        undo_all(self._patches)

    def settings(self) -> list[dict[str, Any]]:
        """Every kind of loader that was iterated, by the number that its events carry."""
        return [dict(entry) for entry in self._settings]

    def _following(self, real: Callable[..., Any]) -> Callable[..., Any]:
        session, numbers = self._session, self._numbers
        log, ranges = session.log.add, session.ranges

        @functools.wraps(real)
        def __next__(iterator: Any) -> Any:  # noqa: N807
            # A prefetching thread's time is not the loop's.
            if not session.watching or (session.thread and session.thread != thread()):
                return real(iterator)
            if ranges is not None:
                ranges.push("data")
            session.busy += 1
            started = clock()
            try:
                result = real(iterator)
            except StopIteration:
                # At the end of an epoch workers are sent home, which can take longer than a batch.
                log(("loader", started, clock(), _ENDING, thread()))
                raise
            finally:
                session.busy -= 1
                if ranges is not None:
                    ranges.pop()
            log(("loader", started, clock(), numbers.get(id(iterator), _STARTING), thread()))
            if session.habits is not None:
                session.guarded("habits", session.habits.batch_came, iterator, result)
            return result

        return unseen(__next__)

    def _starting(self, real: Callable[..., Any]) -> Callable[..., Any]:
        session = self._session
        log, ranges = session.log.add, session.ranges

        @functools.wraps(real)
        def __iter__(loader: Any) -> Any:  # noqa: N807
            session.busy += 1
            started = clock()
            try:
                result = real(loader)
            finally:
                session.busy -= 1
            log(("loader", started, clock(), _STARTING, thread()))
            session.guarded("loader", self._learn, loader, result)
            if ranges is not None:
                ranges.epoch()
            return result

        return unseen(__iter__)

    def _learn(self, loader: Any, iterator: Any) -> None:
        described = _describe(loader)
        if described not in self._settings:  # a loader that is made anew each epoch is one loader
            self._settings.append(described)
        self._numbers[id(iterator)] = self._settings.index(described)


def _describe(loader: Any) -> dict[str, Any]:
    dataset = loader.dataset
    found: dict[str, Any] = {name: getattr(loader, name, None) for name in _SETTINGS}
    if found["batch_size"] is None:
        found["batch_size"] = _size_by(getattr(loader, "batch_sampler", None))
    found["data_set"] = f"{type(dataset).__module__}.{type(dataset).__qualname__}"
    found["iterable"] = bool(getattr(loader, "_dataset_kind", 0))
    found["sampler"] = type(getattr(loader, "sampler", None)).__qualname__
    # An iterable data set may compute its length in ways of its own; the others were asked by their sampler,
    # unless that is the script's own.
    found["samples"] = None
    if not found["iterable"]:
        with contextlib.suppress(TypeError, NotImplementedError):
            found["samples"] = len(dataset)
    return found


def _size_by(batch_sampler: Any) -> int | None:
    """How many samples a batch has where a sampler makes the batches, as in loaders that Accelerate makes."""
    size = getattr(batch_sampler, "batch_size", None)
    if type(size) is not int:
        return None
    is_divided = getattr(batch_sampler, "split_batches", False)
    return size // batch_sampler.num_processes if is_divided else size
