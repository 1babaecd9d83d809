"""Batches that a loader has made, yielded again and again: so that levers are timed, and not the loader.

While arms take turns, batches pile up under a slow arm and serve the fast one that follows; and a loader that
is slower than every arm makes all of them equal. With the first batches repeated, neither happens. Epochs
keep their length. A loader whose batches cannot be repeated unseen yields its own, as ever: one without a
length, one that yields objects of which we do not know what they hold, one whose batches the script changes.
"""

import functools
import importlib
import weakref
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, Any

from flatout.inside.tap import Patch, undo_all, unseen
from flatout.levers.batches import leaves, map_leaves

if TYPE_CHECKING:
    from flatout.inside.session import Session

# More than one, so that nothing is found in a cache for being the same memory as a step ago.
_KEPT = 2
_PLAIN = (int, float, bool, str, bytes, type(None))


class RepeatedBatches:
    """Replaces `_next_data` of both kinds of DataLoader iterators, beneath levers that look ahead."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._patches: list[Patch] = []
        self._known: weakref.WeakKeyDictionary[Any, _Store] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        """Begin to repeat."""
        module: Any = importlib.import_module("torch.utils.data.dataloader")
        for kind in (module._SingleProcessDataLoaderIter, module._MultiProcessingDataLoaderIter):  # noqa: SLF001
            self._patches.append(Patch(kind, "_next_data", self._repeating(kind._next_data)))  # noqa: SLF001

    def remove(self) -> None:
        """Put the methods back."""
        undo_all(self._patches)

    def _repeating(self, real: Callable[..., Any]) -> Callable[..., Any]:
        known, facts = self._known, self._session.facts

        @functools.wraps(real)
        def _next_data(iterator: Any) -> Any:
            store = known.get(iterator)
            if store is None:
                store = known[iterator] = _Store(_length(iterator))
            if store.given_up:
                facts["batches_not_repeated"] = store.given_up
            return store.next(iterator, real)

        return unseen(_next_data)


class _Store:
    """The first batches of one iterator, and how far its epoch has come."""

    def __init__(self, length: int | None) -> None:
        self._length = length
        self._batches: list[tuple[Any, list[int]]] = []
        # Why the loader's own batches are yielded, or nothing.
        self.given_up = "" if length is not None else "the loader has no length"
        self._epoch: Any = None
        self._yielded = 0

    def next(self, iterator: Any, real: Callable[..., Any]) -> Any:
        """The next batch of this epoch."""
        if self.given_up:
            return real(iterator)
        epoch = iterator._sampler_iter  # noqa: SLF001
        if epoch is not self._epoch:  # an iterator with lasting workers begins a new one
            self._epoch, self._yielded = epoch, 0
        if len(self._batches) < _KEPT:
            batch = real(iterator)
            self._keep(batch)
        elif self._yielded >= (self._length or 0):
            raise StopIteration
        else:
            batch = self._again(iterator, real)
        self._yielded += 1
        return batch

    def _keep(self, batch: Any) -> None:
        try:
            if _is_plain(batch):
                kept = _copied(batch)
                self._batches.append((kept, _versions(kept)))
            else:
                self._give_up("what a batch holds is not known")
        except Exception as error:  # noqa: BLE001 - tensors of inference mode, say, count no changes
            self._give_up(str(error))

    def _again(self, iterator: Any, real: Callable[..., Any]) -> Any:
        batch, versions = self._batches[self._yielded % _KEPT]
        if _versions(batch) != versions:
            self._give_up("the script changes its batches")
            return real(iterator)
        return _copied(batch)

    def _give_up(self, reason: str) -> None:
        self.given_up = reason
        self._batches.clear()


def _length(iterator: Any) -> int | None:
    try:
        return len(iterator)
    except (TypeError, NotImplementedError):
        return None


def _is_plain(value: Any) -> bool:
    """Whether it is made of tensors, numbers and words in containers that can be copied."""
    if hasattr(value, "untyped_storage") or isinstance(value, _PLAIN):
        return True
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, MutableMapping) and all(map(_is_plain, value.values()))


def _copied(batch: Any) -> Any:
    """Containers of their own, which a script may take apart, over the same memory."""
    return map_leaves(lambda _path, tensor: tensor.detach(), batch)


def _versions(batch: Any) -> list[int]:
    """How often each tensor was changed in place."""
    return [tensor._version for _, tensor in leaves(batch)]  # noqa: SLF001
