"""DataLoader settings of a trial: applied where the loader can bear them, refused with a reason elsewhere."""

import inspect
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from flatout.inside.overrides import LoaderOverride
from flatout.inside.session import Session
from flatout.records.session import Order

DATA = TensorDataset(torch.arange(12.0))

Install = Callable[..., Session]


class Streams(IterableDataset[int]):
    """Would yield everything twice with two workers."""

    def __iter__(self) -> Iterator[int]:
        yield from range(4)


class Shards(IterableDataset[int]):
    """Asks which worker it is."""

    def __iter__(self) -> Iterator[int]:
        info = torch.utils.data.get_worker_info()
        yield from range(info.id if info else 0, 4, info.num_workers if info else 1)


class OnceOnly(IterableDataset[int]):
    """Can be read once by each worker."""

    def __init__(self) -> None:
        self.open: Any = None

    def __iter__(self) -> Iterator[int]:
        if self.open is None:
            torch.utils.data.get_worker_info()
            self.open = iter(range(4))
        yield from self.open


class OnGpu(Dataset[Tensor]):
    """Holds what looks like a tensor on a GPU."""

    def __init__(self, *, nested: bool) -> None:
        self.data: Any = torch.empty(4, device="meta")  # any device that is not the host
        if nested:
            self.data = [self.data]

    def __len__(self) -> int:
        return 4


@pytest.fixture
def install(tmp_path: Path) -> Iterator[Install]:
    taps: list[LoaderOverride] = []

    def make(**wanted: Any) -> Session:
        session = Session(torch, Order(folder=str(tmp_path), loader=wanted))
        tap = LoaderOverride(session)
        tap.install()
        taps.append(tap)
        return session

    found = DataLoader.__init__
    yield make
    for tap in taps:
        tap.remove()
    assert DataLoader.__init__ is found


def test_settings_replace_those_of_the_script_wherever_it_wrote_them(install: Install) -> None:
    session = install(num_workers=2, persistent_workers=True)
    loaders = [
        DataLoader(DATA, 4),
        DataLoader(DATA, 4, False, None, None, 1),  # num_workers by position
        DataLoader(dataset=DATA, batch_size=4, num_workers=0, shuffle=False),
    ]
    for loader in loaders:
        assert (loader.num_workers, loader.persistent_workers, loader.batch_size) == (2, True, 4)
    decisions = session.facts["loader_overrides"]
    assert [one["applied"] for one in decisions] == [True, True, True]
    assert decisions[0]["data_set"] == "TensorDataset"
    assert decisions[0]["settings"] == {"num_workers": 2, "persistent_workers": True}


def test_what_a_loader_yields_is_the_same(install: Install) -> None:
    bare = [batch[0].tolist() for batch in DataLoader(DATA, batch_size=5)]
    install(num_workers=1)
    loader = DataLoader(DATA, batch_size=5)
    assert loader.num_workers == 1
    assert [batch[0].tolist() for batch in loader] == bare


def test_settings_that_need_workers_go_when_the_workers_go(install: Install) -> None:
    install(num_workers=0)
    loader = DataLoader(
        DATA, num_workers=4, prefetch_factor=8, persistent_workers=True, multiprocessing_context="spawn"
    )
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (0, None, False)
    assert loader.multiprocessing_context is None
    assert len(list(loader)) == 12


def test_a_setting_that_needs_workers_is_not_forced_on_a_loader_without(install: Install) -> None:
    install(persistent_workers=True, prefetch_factor=4)
    without, with_workers = DataLoader(DATA), DataLoader(DATA, num_workers=1)
    assert (without.persistent_workers, without.prefetch_factor) == (False, None)
    assert (with_workers.persistent_workers, with_workers.prefetch_factor) == (True, 4)


def test_pinning_alone_leaves_the_workers_as_they_are(install: Install) -> None:
    install(pin_memory=True)
    assert (DataLoader(DATA, num_workers=2).num_workers, DataLoader(DATA).pin_memory) == (2, True)


def test_a_stream_that_never_asks_who_it_is_keeps_its_workers(install: Install) -> None:
    session = install(num_workers=2)
    assert DataLoader(Streams()).num_workers == 0
    assert DataLoader(Shards()).num_workers == 2
    refused, applied = session.facts["loader_overrides"]
    assert (refused["applied"], applied["applied"]) == (False, True)
    assert "everything twice" in refused["reason"]


def test_a_stream_may_have_fewer_workers_than_the_script_gave_it(install: Install) -> None:
    install(num_workers=1)
    assert DataLoader(Streams(), num_workers=4).num_workers == 1


class Curriculum(Dataset[float]):
    """Harder in each epoch, as the script says."""

    def __init__(self) -> None:
        self.epoch = 0

    def __len__(self) -> int:
        return 6

    def __getitem__(self, place: int) -> float:
        return 100.0 * self.epoch + place


def test_workers_see_what_the_script_changed_between_passes(install: Install) -> None:
    session = install(num_workers=1, persistent_workers=True)
    data_set = Curriculum()
    loader = DataLoader(data_set, batch_size=6)
    seen, iterators = [], []
    for data_set.epoch in (0, 1, 1, 2):
        seen.append([batch.tolist()[0] for batch in loader])
        assert loader._iterator is not None
        iterators.append(loader._iterator._workers[0].pid)  # type: ignore[attr-defined]
    assert seen == [[0.0], [100.0], [100.0], [200.0]]
    assert [one == other for one, other in itertools.pairwise(iterators)] == [False, True, False]
    told = session.facts["loader_overrides"][0]
    assert (told["passes_with_kept_workers"], told["passes_with_new_workers"]) == (1, 2)


@pytest.mark.parametrize("changes", [False, True])
def test_a_pass_within_a_pass_leaves_the_other_alone(install: Install, *, changes: bool) -> None:
    session = install(num_workers=1, persistent_workers=True)
    data_set = Curriculum()
    loader = DataLoader(data_set, batch_size=2)
    for _ in range(2):
        seen = []
        for batch in loader:
            seen.append(batch.tolist()[0] % 100)
            if len(seen) == 2:
                data_set.epoch += changes
                assert next(iter(loader)).tolist()[0] == 100.0 * data_set.epoch
        assert seen == [0.0, 2.0, 4.0]
    told = session.facts["loader_overrides"][0]
    assert told.get("passes_with_kept_workers", 0) <= 1


def test_a_stream_gets_new_workers_for_every_pass(install: Install) -> None:
    session = install(num_workers=1, persistent_workers=True)
    loader = DataLoader(OnceOnly(), batch_size=None)
    assert [list(loader) for _ in range(2)] == [[0, 1, 2, 3], [0, 1, 2, 3]]
    assert session.facts["loader_overrides"][0]["passes_with_new_workers"] == 1


def test_workers_that_the_script_keeps_are_left_to_it(install: Install) -> None:
    install(num_workers=1, persistent_workers=True)
    data_set = Curriculum()
    loader = DataLoader(data_set, batch_size=6, num_workers=1, persistent_workers=True)
    seen = []
    for data_set.epoch in (0, 1):
        seen += [batch.tolist()[0] for batch in loader]
    assert seen == [0.0, 0.0]  # as written


@pytest.mark.parametrize(
    "wrapped",
    [
        TensorDataset,
        lambda one: Subset(TensorDataset(one), [0, 1]),
        lambda one: ConcatDataset([Subset(TensorDataset(one), [0])]),
        lambda one: [{"x": one}],
    ],
)
def test_tensors_on_a_device_are_found_in_what_a_data_set_wraps(install: Install, wrapped: Any) -> None:
    install(num_workers=2)
    assert DataLoader(wrapped(torch.zeros(4, device="meta"))).num_workers == 0
    assert DataLoader(wrapped(torch.zeros(4))).num_workers == 2


@pytest.mark.parametrize("nested", [False, True])
def test_a_data_set_that_holds_tensors_on_a_device_gets_no_workers(install: Install, nested: bool) -> None:
    session = install(num_workers=2)
    assert DataLoader(OnGpu(nested=nested)).num_workers == 0
    assert "on a GPU" in session.facts["loader_overrides"][0]["reason"]


def test_a_data_set_that_only_names_a_device_or_minds_being_looked_at_gets_workers(install: Install) -> None:
    class Touchy:
        def __getattr__(self, name: str) -> Any:
            raise OSError("no such library")

    class Names(TensorDataset):
        device = torch.device("cuda")

        def __init__(self) -> None:
            super().__init__(torch.zeros(4))
            self.place, self.touchy = torch.device("cuda", 0), Touchy()

    install(num_workers=2)
    assert DataLoader(Names()).num_workers == 2


def test_a_loader_with_a_timeout_keeps_its_workers(install: Install) -> None:
    session = install(num_workers=0)
    assert DataLoader(DATA, num_workers=2, timeout=5).num_workers == 2
    assert "timeout" in session.facts["loader_overrides"][0]["reason"]


def test_what_the_script_got_wrong_is_said_by_torch_itself(install: Install) -> None:
    bare = inspect.signature(DataLoader.__init__)
    with pytest.raises(TypeError) as expected:
        DataLoader()  # type: ignore[call-arg]
    session = install(num_workers=2)
    assert inspect.signature(DataLoader.__init__) == bare
    with pytest.raises(TypeError) as raised:
        DataLoader()  # type: ignore[call-arg]
    assert str(raised.value) == str(expected.value)
    assert "loader override" in session.failed
    with pytest.raises(ValueError, match="batch_size"):
        DataLoader(DATA, batch_size=-3)


def test_a_subclass_is_overridden_too(install: Install) -> None:
    class Mine(DataLoader[Any]):
        def __init__(self, data: Any) -> None:
            super().__init__(data, batch_size=3)

    install(num_workers=2)
    loader = Mine(DATA)
    assert (type(loader), loader.num_workers, loader.batch_size) == (Mine, 2, 3)


@pytest.mark.parametrize("anew", [False, True])
def test_workers_that_live_on_leave_the_order_of_later_passes(install: Install, *, anew: bool) -> None:
    def orders() -> list[list[float]]:
        torch.manual_seed(5)
        loader = DataLoader(DATA, batch_size=3, shuffle=True)
        if anew:  # with what the first has, as Accelerate does
            living = {"num_workers": loader.num_workers, "persistent_workers": loader.persistent_workers}
            first, loader = loader, DataLoader(DATA, batch_sampler=loader.batch_sampler, **living)
            assert first.dataset is loader.dataset
        return [[float(one) for (batch,) in loader for one in batch] for _ in range(3)]

    as_written = orders()
    install(num_workers=1, persistent_workers=True)
    assert orders() == as_written
    assert as_written[0] != as_written[1]
