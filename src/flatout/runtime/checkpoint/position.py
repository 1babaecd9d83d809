"""Where a training stands in its data, and going on from there: the same batches, in the same order.

A DataLoader is followed from outside: what its sampler draws from, how many batches the loop has had, and
where the random numbers of each worker stood when it had made the last of them. To go on, the sampler draws
as it did and leaves out what the loop has had, without loading it, and each worker goes on with the numbers
of the one whose turn it would have been.
"""

import functools
import importlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from flatout.records.errors import CallerMistake
from flatout.runtime.checkpoint.random_states import as_bytes, as_state, put_back, random_states


class Loader:
    """A DataLoader that knows where it stands. What is not here is the loader's own."""

    def __init__(self, torch: Any, loader: Any) -> None:
        self._torch = torch
        self._loader = loader
        self._numbers = Numbers(torch, loader)
        self._sampler = _follow_sampler(torch, loader, self._numbers)
        self._workers = _Workers(torch, loader)
        # Batches of this pass that the loop has had, and passes that are over.
        self._batches = 0
        self._passes = 0
        # Random numbers when this pass began.
        self._at_start: dict[str, Any] | None = None
        self._to_resume: dict[str, Any] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader)

    @property
    def batches(self) -> int:
        """How many batches of this pass the loop has had."""
        return self._batches

    @property
    def passes(self) -> int:
        """How many passes are over."""
        return self._passes

    def __iter__(self) -> Iterator[Any]:
        resumed, self._to_resume = self._to_resume, None
        if resumed is not None and resumed["nothing_left"]:
            # The loop has had all of it, and not yet done what it does after a pass.
            self._passes += 1
            return
        if resumed is None:
            self._batches, self._at_start = 0, self._numbers.now()
            batches = iter(self._loader)
            self._workers.have_begun()
        else:
            self._batches, self._at_start = resumed["batches"], resumed["at_start"]
            now = random_states(self._torch)
            self._numbers.put_back(resumed["at_start"])
            again = resumed["batches"]  # nobody but an iterable data set knows what comes next
            if self._sampler.can_skip:
                again = self._workers.resume(resumed)
                self._sampler.resume(resumed, empty=again)
            batches = iter(self._loader)
            self._sampler.has_begun()
            self._workers.have_begun()
            for _ in range(again):
                self._workers.unpack(next(batches))
            self._numbers.put_back({**now, "generators": resumed["generators"]})
        for carried in batches:
            batch = self._workers.unpack(carried)
            self._batches += 1
            yield batch
        self._passes += 1
        self._batches, self._at_start = 0, None

    def state_dict(self) -> dict[str, Any]:
        """Where it stands: between two batches."""
        return {
            "passes": self._passes,
            "batches": self._batches,
            "is_over": bool(self._batches) and self._batches == self._length(),
            "at_start": self._at_start,
            "generators": self._numbers.now()["generators"],
            "batch_size": self._loader.batch_size,
            "sampler": self._sampler.state(),
            "workers": self._workers.state(),
        }

    def _length(self) -> int | None:
        try:
            return len(self._loader)
        except TypeError:  # an iterable data set need not know
            return None

    def load_state_dict(self, state: dict[str, Any], *, as_many_ranks: bool = True) -> None:
        """Go on from there: the next pass begins in the middle. Raises CallerMistake where it could not."""
        self._passes = state["passes"]
        is_the_same = as_many_ranks and state["batch_size"] == self._loader.batch_size
        if not state["batches"]:
            self._numbers.put_back({**random_states(self._torch), "generators": state["generators"]})
            if self._loader.persistent_workers:
                self._workers.insist_on_the_same(state["workers"])
                self._workers.resume(state)
            return
        if not is_the_same and not state["is_over"]:
            raise CallerMistake(
                f"the loader's batches have {self._loader.batch_size} samples, and had {state['batch_size']}",
                expected="the same size in the middle of a pass",
                remedy="resume with the old size until the pass is over",
            )
        if is_the_same:
            self._workers.insist_on_the_same(state["workers"])
        self._to_resume = {**state, "nothing_left": not is_the_same}


class _Sampler:
    """Stands before a loader's own sampler: remembers what it drew from, and leaves out batches when told."""

    can_skip = True

    def __init__(self, sampler: Any, numbers: "Numbers") -> None:
        self._real = sampler
        self._numbers = numbers
        self._state: dict[str, Any] = {}
        self._to_resume: tuple[dict[str, Any], int] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def __len__(self) -> int:
        return len(self._real)

    def __iter__(self) -> Iterator[Any]:
        if self._to_resume is None:
            return self._drawn()
        resumed, empty = self._to_resume
        # Now, and not when the first batch is asked for: the loop's own random numbers come later.
        before = self._numbers.now()
        drawn = self._drawn(resumed["sampler"])
        for _ in range(resumed["batches"]):
            next(drawn, None)
        self._numbers.put_back(before)
        return itertools.chain(([] for _ in range(empty)), drawn)

    def _drawn(self, as_then: dict[str, Any] | None = None) -> Iterator[Any]:
        if as_then is not None:
            self._numbers.put_back(as_then)
        self._state = self._numbers.now()
        yield from self._real

    def resume(self, state: dict[str, Any], *, empty: int) -> None:
        """Begin as in this state, with so many empty batches before, however often the loader asks."""
        self._to_resume = (state, empty) if state["sampler"] else None

    def has_begun(self) -> None:
        """The next pass begins as it would."""
        self._to_resume = None

    def state(self) -> dict[str, Any]:
        """What this pass was drawn from."""
        return self._state


class _NoSampler:
    """An iterable data set has none."""

    can_skip = False

    def resume(self, state: dict[str, Any], *, empty: int) -> None:
        """Nothing to draw."""

    def has_begun(self) -> None:
        """Nothing to draw."""

    def state(self) -> dict[str, Any]:
        """Nothing was drawn."""
        return {}


class Numbers:
    """Random numbers of the process, and of generators that the loader and its sampler have of their own."""

    def __init__(self, torch: Any, loader: Any) -> None:
        self._torch = torch
        generators = [getattr(owner, "generator", None) for owner in (loader, *_samplers(loader))]
        self._own = list({id(one): one for one in generators if one is not None}.values())

    def now(self) -> dict[str, Any]:
        """Where they stand."""
        states = [as_bytes(generator.get_state()) for generator in self._own]
        return {**random_states(self._torch), "generators": states}

    def put_back(self, numbers: dict[str, Any]) -> None:
        """To where they stood."""
        put_back(self._torch, numbers)
        self.put_back_own(numbers["generators"])

    def put_back_own(self, states: list[bytes]) -> None:
        """Those of the loader and its sampler alone."""
        for generator, state in zip(self._own, states, strict=False):
            generator.set_state(as_state(self._torch, state))


def _samplers(loader: Any) -> Iterator[Any]:
    """All that draw for a loader: one that shuffles may stand behind those that make batches."""
    yield getattr(loader, "sampler", None)
    found, seen = [getattr(loader, "batch_sampler", None)], set[int]()
    while found:
        one = found.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        found += [getattr(one, "sampler", None), getattr(one, "batch_sampler", None)]


def _follow_sampler(torch: Any, loader: Any, numbers: Numbers) -> "_Sampler | _NoSampler":
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        return _NoSampler()
    name = "batch_sampler" if loader.batch_sampler is not None else "sampler"
    sampler = _Sampler(getattr(loader, name), numbers)
    # DataLoader refuses to have it set: what it guards against is another number of batches.
    vars(loader)[name] = sampler
    return sampler


class _Workers:
    """Every batch that a worker makes brings along where that worker's random numbers stand."""

    def __init__(self, torch: Any, loader: Any) -> None:
        self._torch = torch
        self._loader = loader
        self._count = loader.num_workers
        self._init = loader.worker_init_fn
        # Of each worker, when it had made the last batch that the loop has had; and whether any has drawn.
        self._states: dict[int, Any] = {}
        self._draws = False
        if self._count:
            loader.collate_fn = functools.partial(_carry, loader.collate_fn)
            self.have_begun()

    def unpack(self, carried: Any) -> Any:
        """The batch, without what came with it."""
        if not isinstance(carried, Carried):
            return carried
        if carried.random is None:
            return None
        self._states[carried.worker] = carried.random
        self._draws = self._draws or carried.has_drawn
        return carried.batch

    def state(self) -> dict[str, Any]:
        """As plain data."""
        random = dict(self._states) if self._draws else {}
        return {"count": self._count, "draws": self._draws, "random": random}

    def insist_on_the_same(self, state: dict[str, Any]) -> None:
        """Other workers would draw other numbers, which matters only where they draw any."""
        if state["draws"] and state["count"] != self._count:
            raise CallerMistake(
                f"the loader has {self._count} workers, and had {state['count']}, which drew random numbers",
                expected="as many workers as before in the middle of a pass",
                remedy=f"resume with num_workers={state['count']} until the pass is over",
            )

    def resume(self, state: dict[str, Any]) -> int:
        """The next workers begin where those of this state had come to; how many have no turn at first."""
        workers = state["workers"]
        self._draws = workers["draws"]
        self._states = dict(workers["random"])
        if not self._count or not workers["random"]:
            return 0
        self._loader.worker_init_fn = functools.partial(_begin_with, self._init, self._states)
        self._loader._iterator = None  # noqa: SLF001 - workers that persist have drawn on
        # Workers take turns, the first one first: those whose turn is over make nothing. A loader that makes
        # no batches knows nothing of empty ones.
        return int(state["batches"] % self._count) if self._loader.batch_sampler is not None else 0

    def have_begun(self) -> None:
        """Those of the next pass begin as they would."""
        if self._count:
            self._loader.worker_init_fn = functools.partial(_begin_with, self._init, {})


class Carried:
    """A batch, and where the random numbers of the worker that made it stand."""

    __slots__ = ("batch", "has_drawn", "random", "worker")

    def __init__(self, batch: Any, worker: int, random: Any, *, has_drawn: bool) -> None:
        self.batch = batch
        self.worker = worker
        self.random = random
        self.has_drawn = has_drawn

    def pin_memory(self, device: Any = None) -> "Carried":
        """As the loader would have pinned the batch."""
        pinning: Any = importlib.import_module("torch.utils.data._utils.pin_memory")
        return Carried(
            pinning.pin_memory(self.batch, device), self.worker, self.random, has_drawn=self.has_drawn
        )


# In a worker: its random numbers before it made anything.
_began: list[Any] = []


def _carry(collate: Callable[[Any], Any], samples: Any) -> Any:
    """In a worker: collate, and add where its random numbers stand."""
    import torch
    from torch.utils.data import get_worker_info

    worker = get_worker_info()
    if worker is None:
        return collate(samples)
    if isinstance(samples, list) and not samples:
        return Carried(None, worker.id, None, has_drawn=False)
    batch, random = collate(samples), random_states(torch)
    return Carried(batch, worker.id, random, has_drawn=[random] != _began)


def _begin_with(init: Callable[[int], None] | None, random: dict[int, Any], worker: int) -> None:
    """In a worker, before its first batch."""
    import torch

    if init is not None:
        init(worker)
    if random.get(worker) is not None:
        put_back(torch, random[worker])
    _began[:] = [random_states(torch)]
