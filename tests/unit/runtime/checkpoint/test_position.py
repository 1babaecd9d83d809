"""A loader that goes on in the middle of a pass yields what it would have yielded."""

import itertools
import random
from collections.abc import Callable, Iterable
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
    Subset,
)

import flatout
from flatout.records.errors import CallerMistake
from flatout.runtime.checkpoint.position import Loader
from flatout.runtime.checkpoint.random_states import put_back, random_states
from flatout.runtime.stopping import current

# Torch warns of more workers than cores.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Drawn(Dataset[Any]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, place: int) -> Any:
        return place + torch.rand(2) + random.random() + float(np.random.rand())


class Noise:
    """Draws from one of its own, as a transform may."""

    def __init__(self, kind: int) -> None:
        self.generator = [
            torch.Generator().manual_seed(kind),
            random.Random(kind),
            np.random.default_rng(kind),
            np.random.RandomState(kind),
            np.random.Generator(np.random.MT19937(kind)),
        ][kind]

    def __call__(self, value: Any) -> Any:
        if isinstance(self.generator, torch.Generator):
            return value + torch.rand(2, generator=self.generator)
        return value + float(self.generator.random())


class OwnNumbers(Dataset[Any]):
    def __init__(self) -> None:
        self.rng = np.random.default_rng(3)
        self.transforms = [Noise(kind) for kind in range(5)]

    def __len__(self) -> int:
        return 40

    def __getitem__(self, place: int) -> Any:
        value = place + torch.zeros(2) + float(self.rng.random())
        for one in self.transforms:
            value = one(value)
        return value


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
        # Where the loader stood after the last batch that was taken, and random numbers then.
        self.state: dict[str, Any] = {}
        self.numbers: dict[str, Any] = {}

    def loader(self, **changes: Any) -> Loader:
        return Loader(torch, DataLoader(self.data, **{**self.settings, **changes}))

    def take(self, loader: Loader, count: int) -> list[Any]:
        taken: list[Any] = []
        while True:
            for batch in loader:
                taken.append((batch.tolist(), torch.rand(()).item()))
                if len(taken) == count:
                    self.state, self.numbers = loader.state_dict(), random_states(torch)
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
    ("no batches, and workers", lambda: Run(Drawn(), batch_size=None, num_workers=3)),
    ("numbers of the data's own", lambda: Run(Subset(OwnNumbers(), range(40)))),
    ("numbers of the data's own, in workers", lambda: Run(OwnNumbers(), num_workers=2)),
    ("its own, no batches, workers", lambda: Run(OwnNumbers(), batch_size=None, num_workers=2)),
    ("iterable", lambda: Run(Counted(), shuffle=False)),
]


# In a pass, at its end, and after the first batch of the next: most workers have given nothing of it yet.
@pytest.mark.parametrize("stopped_after", [3, 10, 11])
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
    seen = first.take(first.loader(), stopped_after)
    second = make()
    torch.rand(7)  # a new process has drawn other numbers by then
    resumed = second.loader()
    resumed.load_state_dict(first.state)
    put_back(torch, first.numbers)
    return everything, seen, second.take(resumed, 9)


def test_a_generator_behind_the_sampler_of_batches_goes_on_in_later_passes() -> None:
    everything, seen, rest = stopped_and_resumed(lambda: Run(Drawn(), **sampler_behind_batches()), 13)
    assert [*seen, *rest] == everything


def halfway(data: Dataset[Any], **settings: Any) -> tuple[Run, dict[str, Any]]:
    run = Run(data, **settings)
    run.take(run.loader(), 3)
    return run, run.state


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


class Epochs:
    """Passes that are cut off, each saved at its end."""

    def __init__(self, cut: Callable[[Any], Iterable[Any]], **settings: Any) -> None:
        self.cut = cut
        self.run = Run(Drawn(), **settings)

    def loader(self) -> Loader:
        return self.run.loader()

    def one(self, loader: Loader) -> list[Any]:
        return [(batch.tolist(), torch.rand(()).item()) for batch in self.cut(loader)]


def until_three(loader: Any) -> Iterable[Any]:
    for count, batch in enumerate(loader, 1):
        yield batch
        if count == 3:
            break


@pytest.mark.parametrize("cut", [until_three, lambda loader: itertools.islice(loader, 3)])
@pytest.mark.parametrize(
    "settings", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 1}]
)
def test_a_pass_that_the_loop_has_left_is_over(cut: Any, settings: dict[str, Any]) -> None:
    whole = Epochs(cut, **settings)
    loader = whole.loader()
    everything = [whole.one(loader) for _ in range(4)]
    assert (loader.passes, loader.batches) == (4, 0)
    first = Epochs(cut, **settings)
    loader = first.loader()
    assert [first.one(loader) for _ in range(2)] == everything[:2]
    state, numbers = loader.state_dict(), random_states(torch)
    second = Epochs(cut, **settings)
    torch.rand(7)
    resumed = second.loader()
    resumed.load_state_dict(state)
    put_back(torch, numbers)
    assert [second.one(resumed) for _ in range(2)] == everything[2:]
    assert resumed.passes == 4


def test_within_a_pass_that_will_be_left_the_rest_of_it_comes_first() -> None:
    run = Run(Plain(), shuffle=False)
    run.take(run.loader(), 2)
    resumed = run.loader()
    resumed.load_state_dict(run.state)
    assert (resumed.passes, resumed.batches) == (0, 2)
    assert resumed.state_dict() == run.state  # nothing is lost where it is saved again at once
    assert next(iter(resumed)).tolist() == [8, 9, 10, 11]
    assert resumed.passes == 1
    assert next(iter(resumed)).tolist() == [0, 1, 2, 3]


def test_a_pass_that_an_exception_has_ended_goes_on_where_that_is_saved() -> None:
    loader = Run(Plain(), shuffle=False).loader()
    try:
        for batch in loader:
            if batch[0] == 8:
                raise OSError("no network")
    except OSError:
        state = loader.state_dict()
    assert (state["passes"], state["batches"]) == (0, 3)
    assert loader.state_dict()["passes"] == 1  # it was dealt with: a new pass comes next


def test_a_pass_that_is_left_because_training_is_to_stop_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = Run(Plain(), shuffle=False).loader()
    monkeypatch.setattr(current(), "signal", 15)
    for _ in loader:
        break
    assert (loader.state_dict()["passes"], loader.state_dict()["batches"]) == (0, 1)


class Failing(Plain):
    has_failed = False

    def __getitem__(self, place: int) -> Any:
        if place == 8 and not self.has_failed:
            self.has_failed = True
            raise OSError("no network")
        return super().__getitem__(place)


def test_data_that_fails_ends_no_pass() -> None:
    loader = Run(Failing(), shuffle=False).loader()
    with pytest.raises(OSError, match="no network"):
        len([*loader])
    assert len([*loader]) == 10
    assert loader.passes == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_that_are_fetched_ahead_count_when_the_loop_has_them(workers: int) -> None:
    def life(state: dict[str, Any] | None) -> tuple[Loader, list[Any]]:
        seeded()
        inner = DataLoader(Drawn(), 4, shuffle=True, num_workers=workers)
        loader = Loader(torch, flatout.prefetch(inner, "cpu"))
        if state is not None:
            loader.load_state_dict(state)
        return loader, []

    loader, everything = life(None)
    states = []
    for batch in loader:
        everything.append(batch.tolist())
        states.append((loader.state_dict(), random_states(torch)))
        assert loader.batches == len(everything)
    resumed, rest = life(states[2][0])
    put_back(torch, states[2][1])
    rest += [batch.tolist() for batch in resumed]
    assert rest == everything[3:]


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: [torch.ones(1)], "a loader that is a builtins.list"),
        (lambda: DataLoader(Plain(), num_workers=2, in_order=False), "in_order=False"),
    ],
)
def test_what_cannot_be_followed_is_refused(make: Callable[[], Any], word: str) -> None:
    with pytest.raises(CallerMistake, match=word):
        Loader(torch, make())


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
