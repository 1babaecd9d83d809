"""A loader that goes on in the middle of a pass yields what it would have yielded."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
)

from flatout.records.errors import CallerMistake
from flatout.runtime.checkpoint.position import Loader
from flatout.runtime.checkpoint.random_states import put_back, random_states

# Torch warns of more workers than cores.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Drawn(Dataset[Any]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, place: int) -> Any:
        return place + torch.rand(2) + random.random() + float(np.random.rand())


class Plain(Dataset[Any]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, place: int) -> Any:
        return torch.tensor(place)


class Counted(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(torch.arange(40))


def seeded() -> None:
    random.seed(1)
    torch.manual_seed(1)
    np.random.seed(1)


def own_generator() -> dict[str, Any]:
    return {"generator": torch.Generator().manual_seed(9)}


def sampler_of_its_own() -> dict[str, Any]:
    return {"sampler": RandomSampler(Plain(), generator=torch.Generator().manual_seed(4)), "shuffle": False}


def sampler_behind_batches() -> dict[str, Any]:
    shuffled = RandomSampler(Plain(), generator=torch.Generator().manual_seed(4))
    return {"batch_sampler": BatchSampler(shuffled, 4, drop_last=False), "batch_size": 1, "shuffle": False}


def of_a_rank() -> dict[str, Any]:
    return {"sampler": DistributedSampler(Plain(), num_replicas=2, rank=1, seed=3), "shuffle": False}


class Run:
    """Some batches, each followed by a random number of the loop's own."""

    def __init__(self, data: Dataset[Any], **settings: Any) -> None:
        seeded()
        self.settings = {"batch_size": 4, "shuffle": True, **settings}
        self.data = data

    def loader(self, **changes: Any) -> Loader:
        return Loader(torch, DataLoader(self.data, **{**self.settings, **changes}))

    def take(self, loader: Loader, count: int) -> list[Any]:
        taken: list[Any] = []
        while True:
            for batch in loader:
                taken.append((batch.tolist(), torch.rand(()).item()))
                if len(taken) == count:
                    return taken


JOBS: list[tuple[str, Callable[[], Run]]] = [
    ("in the loop", lambda: Run(Drawn())),
    ("workers", lambda: Run(Drawn(), num_workers=2)),
    ("workers that persist", lambda: Run(Drawn(), num_workers=2, persistent_workers=True)),
    ("three workers", lambda: Run(Drawn(), num_workers=3, prefetch_factor=4)),
    ("a generator of its own", lambda: Run(Drawn(), **own_generator())),
    ("a sampler of its own", lambda: Run(Drawn(), **sampler_of_its_own())),
    ("a rank's sampler", lambda: Run(Drawn(), **of_a_rank())),
    ("no batches", lambda: Run(Drawn(), batch_size=None)),
    ("iterable", lambda: Run(Counted(), shuffle=False)),
]


@pytest.mark.parametrize("stopped_after", [3, 10])
@pytest.mark.parametrize("make", [make for _, make in JOBS], ids=[name for name, _ in JOBS])
def test_the_rest_comes_as_it_would_have_come(make: Callable[[], Run], stopped_after: int) -> None:
    everything, seen, rest = stopped_and_resumed(make, stopped_after)
    assert seen == everything[:stopped_after]
    assert rest == everything[stopped_after:]


def stopped_and_resumed(
    make: Callable[[], Run], stopped_after: int
) -> tuple[list[Any], list[Any], list[Any]]:
    """All batches of one job; those of another until it is stopped, and those after it was resumed."""
    whole = make()
    everything = whole.take(whole.loader(), stopped_after + 9)
    first = make()
    loader = first.loader()
    seen = first.take(loader, stopped_after)
    state, numbers = loader.state_dict(), random_states(torch)
    second = make()
    torch.rand(7)  # a new process has drawn other numbers by then
    resumed = second.loader()
    resumed.load_state_dict(state)
    put_back(torch, numbers)
    return everything, seen, second.take(resumed, 9)


def test_a_generator_behind_the_sampler_of_batches_goes_on_in_later_passes() -> None:
    everything, seen, rest = stopped_and_resumed(lambda: Run(Drawn(), **sampler_behind_batches()), 13)
    assert [*seen, *rest] == everything


def halfway(data: Dataset[Any], **settings: Any) -> tuple[Run, dict[str, Any]]:
    run = Run(data, **settings)
    loader = run.loader()
    run.take(loader, 3)
    return run, loader.state_dict()


def test_another_batch_size_is_refused_in_the_middle_of_a_pass() -> None:
    run, state = halfway(Plain())
    with pytest.raises(CallerMistake, match="8 samples, and had 4"):
        run.loader(batch_size=8).load_state_dict(state)


def test_other_workers_are_refused_only_where_they_draw() -> None:
    run, state = halfway(Drawn(), num_workers=2)
    with pytest.raises(CallerMistake, match="3 workers, and had 2"):
        run.loader(num_workers=3).load_state_dict(state)
    run, state = halfway(Plain(), num_workers=2)
    other = run.loader(num_workers=3)
    other.load_state_dict(state)
    assert len(run.take(other, 7)) == 7


def test_what_the_loader_knows_it_still_knows() -> None:
    loader = Run(Plain()).loader()
    assert len(loader) == 10
    assert loader.batch_size == 4
    assert loader.batch_sampler.batch_size == 4


def test_random_numbers_of_gpus_that_nobody_used_do_not_wake_the_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wakes() -> bool:
        raise AssertionError("the driver was asked")

    monkeypatch.setattr(torch.cuda, "is_available", wakes)
    assert "cuda" not in random_states(torch)
