"""DataLoader settings that a trial uses instead of the script's own; for the sweep of `profile --loader`.

Refuses what would change what the loader yields: workers for a data set that would yield everything twice.
Workers that live on from pass to pass only because of us are started anew where the data set has changed
since: what is in them is what it was when they were started.
"""

import contextlib
import functools
import importlib
import itertools
import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flatout.inside.tap import Patch, undo_all, unseen
from flatout.inside.unchanged import checksum_of

if TYPE_CHECKING:
    from flatout.inside.session import Session

# References to an iterator that nobody else holds: the loader's, and that of whoever counts.
_OURS = 2
# How far and how wide a data set is looked into for tensors on a GPU.
_DEEPEST, _FEW = 5, 4


class LoaderOverride:
    """Replaces arguments of DataLoader where the loader can bear it; each decision keeps its reason."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._patches: list[Patch] = []
        self._wanted = dict(session.order.loader)
        # Loaders whose workers live on from pass to pass only because of us, and what is told of each.
        self._made_persistent: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
        # What their workers were given.
        self._given: weakref.WeakKeyDictionary[Any, bytes | None] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        """Patch the constructor, and where passes begin."""
        loader: Any = importlib.import_module("torch.utils.data.dataloader").DataLoader
        self._patches = [
            Patch(loader, "__init__", self._overriding(loader.__init__)),
            Patch(loader, "__iter__", self._as_written(loader.__iter__)),
        ]
        self._session.facts["loader_overrides"] = []

    def remove(self) -> None:
        """Put both back."""
        undo_all(self._patches)

    def _overriding(self, real: Callable[..., None]) -> Callable[..., None]:
        import inspect

        signature = inspect.signature(real)
        tap = self

        @functools.wraps(real)
        def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            try:
                bound = signature.bind(loader, *args, **kwargs)
                reason = tap._refusal(bound.arguments)
            except Exception as error:  # noqa: BLE001 - whatever is wrong, the real constructor says it
                tap._session.fail("loader override", error)
                return real(loader, *args, **kwargs)
            decisions = tap._session.facts["loader_overrides"]
            name = type(bound.arguments["dataset"]).__qualname__
            if reason:
                decisions.append({"data_set": name, "applied": False, "reason": reason})
                return real(loader, *args, **kwargs)
            changed = tap._changed(bound.arguments)
            decision = {"data_set": name, "applied": True, "settings": changed}
            decisions.append(decision)
            is_ours = changed.get("persistent_workers") and not tap._is_the_scripts_wish(bound.arguments)
            bound.arguments.update(changed)
            if is_ours:
                tap._made_persistent[loader] = decision
            return real(*bound.args, **bound.kwargs)

        return unseen(__init__)

    def _is_the_scripts_wish(self, given: dict[str, Any]) -> bool:
        """Whether workers live on as written; Accelerate makes loaders anew, with what the first has."""
        if not given.get("persistent_workers", False):
            return False
        return all(one.dataset is not given["dataset"] for one in self._made_persistent)

    def _as_written(self, real: Callable[..., Any]) -> Callable[..., Any]:
        made = self._made_persistent

        @functools.wraps(real)
        def __iter__(loader: Any) -> Any:  # noqa: N807
            if loader in made:
                self._begin_pass(loader, made[loader])
            return real(loader)

        return unseen(__iter__)

    def _begin_pass(self, loader: Any, told: dict[str, Any]) -> None:
        """Workers that live on must be what new ones would be.

        A pass that somebody is still in the middle of goes on with the workers that it has. A stream may have
        been read to its end by them: it always gets new ones.
        """
        now = None
        if not _is_iterable(loader.dataset):
            now = checksum_of(loader.dataset, loader.collate_fn, loader.worker_init_fn)
        if loader._iterator is not None and sys.getrefcount(loader._iterator) > _OURS:  # noqa: SLF001
            loader._iterator = None  # noqa: SLF001
            told["passes_with_new_workers"] = told.get("passes_with_new_workers", 0) + 1
        running = loader._iterator  # noqa: SLF001 - there is no public way
        if running is not None:
            is_same = now is not None and now == self._given.get(loader)
            passes = "passes_with_kept_workers" if is_same else "passes_with_new_workers"
            told[passes] = told.get(passes, 0) + 1
            if is_same:
                # Each pass draws a seed for its workers; one whose workers live on would not.
                torch = self._session.torch
                torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
                return
            running._shutdown_workers()  # noqa: SLF001
            loader._iterator = None  # noqa: SLF001
        self._given[loader] = now

    def _changed(self, given: dict[str, Any]) -> dict[str, Any]:
        changed = dict(self._wanted)
        # A size is meant for the loader that trains: others keep theirs.
        was = changed.pop("batch_size_was", None)
        if "batch_size" in changed and (given.get("batch_size", 1) != was or given.get("batch_sampler")):
            del changed["batch_size"]
        if changed.get("num_workers", given.get("num_workers", 0)) == 0:
            # Without workers these are refused by the constructor.
            for name in ("prefetch_factor", "persistent_workers", "multiprocessing_context"):
                if name in changed or name in given:
                    changed[name] = False if name == "persistent_workers" else None
            if not given.get("timeout"):
                changed.pop("timeout", None)
        return changed

    def _refusal(self, given: dict[str, Any]) -> str:
        """Why this loader must stay as it is, or nothing."""
        data_set = given["dataset"]
        workers = self._wanted.get("num_workers", 0)
        if self._wanted.get("num_workers") == 0 and given.get("timeout"):
            return "it waits with a timeout, which needs workers"
        if workers > given.get("num_workers", 0):
            return refusal_of_workers(data_set, workers, given.get("num_workers", 0))
        return ""


def refusal_of_workers(data_set: Any, workers: int, now: int) -> str:
    """Why a data set must not have more workers than now, or nothing."""
    if workers <= now:
        return ""
    if _is_iterable(data_set) and not _asks_for_worker_info(data_set):
        return "an iterable data set that never asks get_worker_info would yield everything twice"
    if _holds_device_tensors(data_set):
        return "the data set holds tensors on a GPU, which workers cannot share"
    return ""


def _is_iterable(data_set: Any) -> bool:
    return importlib.import_module("torch.utils.data").IterableDataset in type(data_set).__mro__


def _asks_for_worker_info(data_set: Any) -> bool:
    """Whether any method of the class mentions it; a worker_init_fn may shard too, but we cannot know."""
    for owner in type(data_set).__mro__:
        for method in vars(owner).values():
            code = getattr(method, "__code__", None)
            if code is not None and "get_worker_info" in code.co_names:
                return True
    return False


def _holds_device_tensors(value: Any, depth: int = _DEEPEST) -> bool:
    """Also in a data set that it wraps, in its lists and dicts: the first few of each tell."""
    with contextlib.suppress(Exception):  # objects may do anything when they are asked for an attribute
        if hasattr(value, "untyped_storage"):
            return bool(value.device.type != "cpu")
    if depth == 0 or isinstance(value, str | bytes | int | float | type):
        return False
    if isinstance(value, dict):
        inner = list(itertools.islice(value.values(), _FEW))
    elif isinstance(value, list | tuple):
        inner = list(value[:_FEW])
    else:
        inner = list(getattr(value, "__dict__", {}).values())
    return any(_holds_device_tensors(one, depth - 1) for one in inner)
