"""Workers whose random numbers are known: each batch brings along where those of its worker stand.

In another life each worker begins with the numbers of the one whose turn it would have been, and its copy of
the data set with the numbers that the data set had there.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any

from flatout.records.errors import CallerMistake
from flatout.runtime.checkpoint.own_numbers import own_generators, put_back_states, states_of
from flatout.runtime.checkpoint.random_states import put_back, random_states


class Workers:
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
            makes_batches = loader.batch_sampler is not None
            loader.collate_fn = functools.partial(_carry, loader.collate_fn, makes_batches)
            self.have_begun()

    def note(self, carried: Any) -> None:
        """The loop has the batch that this came with."""
        if isinstance(carried, Carried) and carried.random is not None:
            self._states[carried.worker] = carried.random
            self._draws = self._draws or carried.has_drawn

    def begin_a_pass(self) -> None:
        """With workers of its own, unless these persist: of whom nothing came yet, nothing is known."""
        if not self._loader.persistent_workers:
            self._states.clear()

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
        # Workers take turns, the first one first: those whose turn is over make nothing. A loader that makes
        # no batches knows nothing of empty ones: they load a sample once more, which goes to nobody.
        over = int(state["batches"] % self._count)
        once_more = 0 if self._loader.batch_sampler is not None else over
        self._loader.worker_init_fn = functools.partial(_begin_with, self._init, self._states, once_more)
        self._loader._iterator = None  # noqa: SLF001 - workers that persist have drawn on
        return over

    def have_begun(self) -> None:
        """Those of the next pass begin as they would."""
        if self._count:
            self._loader.worker_init_fn = functools.partial(_begin_with, self._init, {}, 0)


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


def opened_of(carried: Any) -> tuple[Any, Any]:
    """A batch, and what came with it."""
    return (carried.batch, carried) if isinstance(carried, Carried) else (carried, None)


# In a worker: its random numbers before it made anything; and while the first sample goes to nobody.
_began: list[Any] = []
_goes_to_nobody: list[Any] = []


def _carry(collate: Callable[[Any], Any], makes_batches: bool, samples: Any) -> Any:
    """In a worker: collate, and add where its random numbers stand."""
    from torch.utils.data import get_worker_info

    worker = get_worker_info()
    if worker is None:
        return collate(samples)
    if makes_batches and isinstance(samples, list) and not samples:
        return Carried(None, worker.id, None, has_drawn=False)
    if _goes_to_nobody:
        _put_back_here(worker.dataset, _goes_to_nobody.pop())
        return Carried(None, worker.id, None, has_drawn=False)
    batch, random = collate(samples), _numbers_here(worker.dataset)
    return Carried(batch, worker.id, random, has_drawn=[random] != _began)


def _begin_with(
    init: Callable[[int], None] | None, random: dict[int, Any], once_more: int, worker: int
) -> None:
    """In a worker, before its first batch; of so many workers, that goes to nobody."""
    from torch.utils.data import get_worker_info

    if init is not None:
        init(worker)
    info = get_worker_info()
    assert info is not None
    if random.get(worker) is not None:
        _put_back_here(info.dataset, random[worker])
    _began[:] = [_numbers_here(info.dataset)]
    _goes_to_nobody[:] = _began if worker < once_more else []


def _numbers_here(data_set: Any) -> dict[str, Any]:
    """Of this worker, and of its own copy of the data set."""
    import torch

    own = states_of(torch, own_generators(torch, data_set))
    return {**random_states(torch), **({"own": own} if own else {})}


def _put_back_here(data_set: Any, states: dict[str, Any]) -> None:
    import torch

    put_back(torch, states)
    put_back_states(torch, own_generators(torch, data_set), states.get("own", ()))
