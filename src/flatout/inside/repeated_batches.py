"""Batches that a loader has made, yielded again and again: so that levers are timed, and not the loader.

While arms take turns, batches pile up under a slow arm and serve the fast one that follows; and a loader that
is slower than every arm makes all of them equal. With two batches repeated, neither happens. Only the loader
that trains is repeated, and its sampler still says when an epoch ends. A loader whose batches cannot be
repeated unseen yields its own, as ever.
"""

import copy
import functools
import importlib
import weakref
from collections import OrderedDict, UserDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flatout.inside.tap import Patch, thread, undo_all, unseen

if TYPE_CHECKING:
    from flatout.inside.session import Session

# More than one, so that nothing is found in a cache for being the same memory as a step ago.
_KEPT = 2
_DEEPEST = 6
_PLAIN = (int, float, bool, complex, str, bytes, type(None))


class CannotRepeat(Exception):
    """Why batches of a loader cannot be yielded again."""


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
        known, session = self._known, self._session

        @functools.wraps(real)
        def _next_data(iterator: Any) -> Any:
            # From the first update on it is known who trains, and where.
            if not session.updates or session.thread != thread():
                return real(iterator)
            store = known.get(iterator)
            if store is None:
                store = known[iterator] = _Store(session, iterator)
            return store.next(iterator, real)

        return unseen(_next_data)


class _Store:
    """Two batches of one iterator, and how far its epoch has come."""

    def __init__(self, session: "Session", iterator: Any) -> None:
        self._session = session
        self._batches: list[tuple[Any, list[int]]] = []
        self._epoch: Any = None
        # Of this epoch: how many were yielded since it is looked at, and how many of them again.
        self._repeated = 0
        # Why the loader's own batches are yielded, or nothing.
        self._given_up = _refusal_of_the_loader(iterator)
        if not self._given_up and not trains(session):
            self._given_up = "it does not train"
        elif self._given_up:
            session.facts["batches_not_repeated"] = self._given_up

    def next(self, iterator: Any, real: Callable[..., Any]) -> Any:
        """The next batch of this epoch."""
        if self._given_up:
            return real(iterator)
        epoch = iterator._sampler_iter  # noqa: SLF001
        if epoch is not self._epoch:  # an iterator with lasting workers begins a new one
            self._epoch, self._repeated = epoch, 0
        if len(self._batches) < _KEPT:
            batch = real(iterator)
            try:
                kept = copied(self._session.torch, batch)
                self._batches.append((kept, versions(kept)))
            except Exception as error:  # noqa: BLE001 - then this loader's batches are its own
                self._give_up(iterator, real, str(error))
            return batch
        kept, before = self._batches[self._repeated % _KEPT]
        if versions(kept) != before:
            self._give_up(iterator, real, "the script changes its batches")
            return real(iterator)
        self._insist_on_another(iterator)
        self._repeated += 1
        return copied(self._session.torch, kept)

    def _insist_on_another(self, iterator: Any) -> None:
        """Raises StopIteration where the sampler has no more; workers are sent home then, as ever."""
        ahead = _made_ahead(iterator)
        if ahead is not None and self._repeated < ahead:
            return  # these were drawn for the workers
        try:
            next(iterator._sampler_iter)  # noqa: SLF001
        except StopIteration:
            if ahead is not None and not iterator._persistent_workers:  # noqa: SLF001
                iterator._shutdown_workers()  # noqa: SLF001
            raise

    def _give_up(self, iterator: Any, real: Callable[..., Any], reason: str) -> None:
        self._given_up = self._session.facts["batches_not_repeated"] = reason
        self._batches.clear()
        # What workers have made for steps that are over would make the epoch longer.
        for _ in range(min(self._repeated, _made_ahead(iterator) or 0)):
            real(iterator)


def trains(session: "Session") -> bool:
    """Whether the job trains now: its evaluation needs every batch."""
    if session.order.infer:
        return True
    return bool(session.torch.is_grad_enabled() and all(root.training for root in session.roots()))


def _made_ahead(iterator: Any) -> int | None:
    """How many batches workers have been asked for that nobody got; None without workers."""
    if not hasattr(iterator, "_send_idx"):
        return None
    return int(iterator._send_idx - iterator._rcvd_idx)  # noqa: SLF001


def _refusal_of_the_loader(iterator: Any) -> str:
    if getattr(iterator, "_dataset_kind", 0):
        return "an iterable data set says itself when it ends"
    return ""


def refusal(torch: Any, iterator: Any, batch: Any) -> str:
    """Why batches like this one cannot be repeated, or nothing."""
    try:
        copied(torch, batch)
    except Exception as error:  # noqa: BLE001 - whatever it holds, it is the script's
        return str(error) or type(error).__name__
    return _refusal_of_the_loader(iterator)


def copied(torch: Any, value: Any, depth: int = 0) -> Any:
    """The same in containers of its own, which a script may take apart, over the same memory."""
    kind = type(value)
    if kind is torch.Tensor:
        if value.requires_grad or vars(value):
            raise CannotRepeat("a tensor of a batch has more than its numbers")
        value._version  # noqa: B018, SLF001 - tensors of inference mode have none, and say so
        return value.detach()
    if kind in _PLAIN:
        return value
    if depth == _DEEPEST:
        raise CannotRepeat("a batch is nested too deeply")
    if kind is list or (isinstance(value, tuple) and (kind is tuple or hasattr(kind, "_fields"))):
        items = [copied(torch, item, depth + 1) for item in value]
        return kind(*items) if hasattr(kind, "_fields") else kind(items)
    if kind in (dict, OrderedDict):
        return kind((name, copied(torch, item, depth + 1)) for name, item in value.items())
    if isinstance(value, UserDict):
        twin = copy.copy(value)
        twin.data = {name: copied(torch, item, depth + 1) for name, item in value.data.items()}
        return twin
    raise CannotRepeat(f"what a {kind.__name__} of a batch holds is not known")


def versions(batch: Any) -> list[int]:
    """How often each tensor was changed in place."""
    if hasattr(batch, "untyped_storage"):
        return [batch._version]  # noqa: SLF001
    items = batch.values() if isinstance(batch, dict | UserDict) else batch
    return [] if isinstance(batch, _PLAIN) else [number for item in items for number in versions(item)]
