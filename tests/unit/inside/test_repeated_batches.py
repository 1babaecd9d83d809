"""Batches that are yielded again: as many as the loader has, unseen by the script."""

import dataclasses
import itertools
import multiprocessing
import threading
import time
from collections import UserDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from flatout.inside.repeated_batches import RepeatedBatches, refusal
from flatout.inside.session import Session
from flatout.levers.prefetching import workers_have_one
from flatout.records.session import Order


class Numbers(Dataset[dict[str, Any]]):
    """Which item was asked for."""

    def __init__(self, count: int = 40) -> None:
        self.count = count
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, place: int) -> dict[str, Any]:
        self.asked.append(place)
        return {"x": torch.full((3,), float(place)), "name": f"number {place}"}


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from (torch.tensor(number) for number in range(30))


@dataclasses.dataclass
class Odd:
    x: torch.Tensor


class Pair(NamedTuple):
    x: torch.Tensor
    names: list[str]


class Drawing(Sampler[int]):
    """Never ends, whatever its length."""

    def __iter__(self) -> Iterator[int]:
        return itertools.cycle(range(40))

    def __len__(self) -> int:
        return 12


@pytest.fixture
def model() -> torch.nn.Module:
    return torch.nn.Linear(3, 1)


@pytest.fixture
def session(tmp_path: Path, model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    session = Session(torch, Order(folder=str(tmp_path)))
    session.thread, session.updates = threading.get_ident(), 1
    monkeypatch.setattr(session, "roots", lambda: [model])
    tap = RepeatedBatches(session)
    tap.install()
    yield session
    tap.remove()


def firsts(loader: Any) -> list[float]:
    return [float(batch["x"][0, 0]) for batch in loader]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("count", [40, 42])
def test_two_batches_fill_epochs_of_the_same_length(
    session: Session, workers: int, lasting: bool, count: int
) -> None:
    loader = DataLoader(
        Numbers(count), batch_size=4, num_workers=workers, persistent_workers=lasting and workers > 0
    )
    for _ in range(3):
        assert firsts(loader) == ([0.0, 4.0] * 6)[: len(loader)]
        assert lasting or not multiprocessing.active_children()
    assert "batches_not_repeated" not in session.facts


def test_items_are_made_for_two_batches_alone(session: Session) -> None:
    data = Numbers()
    assert len(firsts(DataLoader(data, batch_size=4))) == 10
    assert data.asked == list(range(8))


def test_before_the_first_update_and_in_other_threads_batches_are_the_loaders_own(session: Session) -> None:
    whole = [float(place) for place in range(0, 40, 4)]
    session.updates = 0
    assert firsts(DataLoader(Numbers(), batch_size=4)) == whole
    session.updates, session.thread = 1, -1
    assert firsts(DataLoader(Numbers(), batch_size=4)) == whole


def test_what_evaluates_gets_every_batch(session: Session, model: torch.nn.Module) -> None:
    whole = [float(place) for place in range(0, 42, 4)]
    model.eval()
    assert firsts(DataLoader(Numbers(42), batch_size=4, num_workers=1)) == whole
    model.train()
    with torch.no_grad():
        assert firsts(DataLoader(Numbers(42), batch_size=4)) == whole
    assert "batches_not_repeated" not in session.facts


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sampler_that_never_ends_goes_on(session: Session, workers: int) -> None:
    loader = DataLoader(Numbers(), batch_size=4, sampler=Drawing(), num_workers=workers)
    assert len(list(itertools.islice(loader, 50))) == 50


@pytest.mark.parametrize(
    ("collate", "take_apart"),
    [
        (None, lambda batch: (batch.pop("x"), batch.pop("name"))),
        (lambda items: UserDict(items[0]), lambda batch: batch.pop("name")),
        (lambda items: [{"meta": [{"id": 1}]}, items[0]["x"]], lambda batch: batch[0]["meta"][0].pop("id")),
        (lambda items: Pair(items[0]["x"], ["a"]), lambda batch: batch.names.pop()),
        (lambda items: {"text": ["a"]}, lambda batch: batch.pop("text")),
    ],
)
def test_a_script_may_take_its_batch_apart(
    session: Session, collate: Callable[..., Any], take_apart: Callable[..., Any]
) -> None:
    count = 0
    for batch in DataLoader(Numbers(), batch_size=4, collate_fn=collate):
        take_apart(batch)
        count += 1
    assert count == 10
    assert "batches_not_repeated" not in session.facts


@pytest.mark.parametrize("workers", [0, 2])
def test_a_script_that_changes_its_batches_gets_new_ones(session: Session, workers: int) -> None:
    seen = []
    for batch in DataLoader(Numbers(80), batch_size=4, num_workers=workers):
        seen.append(float(batch["x"][0, 0]))
        if len(seen) == 9:
            batch["x"].sub_(1000)
    assert all(value >= 0 for value in seen)
    assert len(seen) == 20  # no longer for that
    assert session.facts["batches_not_repeated"] == "the script changes its batches"


def test_an_iterable_data_set_yields_its_own(session: Session) -> None:
    assert [int(batch[0]) for batch in DataLoader(Endless(), batch_size=3)] == list(range(0, 30, 3))
    assert "iterable" in session.facts["batches_not_repeated"]


def deep(items: Any) -> Any:
    for _ in range(8):
        items = [items]
    return items


def with_a_mark(items: Any) -> torch.Tensor:
    tensor: Any = torch.ones(1)
    tensor.mark = 1
    return tensor


@pytest.mark.parametrize(
    "collate",
    [
        lambda items: Odd(items[0]["x"]),
        lambda items: {1, 2},
        lambda items: items[0]["x"].numpy(),
        lambda items: torch.ones(1, requires_grad=True),
        lambda items: torch.nn.Parameter(torch.ones(1)),
        with_a_mark,
        deep,
    ],
)
def test_what_nobody_knows_is_not_repeated(session: Session, collate: Callable[..., Any]) -> None:
    data = Numbers()
    loader = DataLoader(data, batch_size=4, collate_fn=collate)
    assert len(list(loader)) == 10
    assert data.asked == list(range(40))
    assert session.facts["batches_not_repeated"]
    assert refusal(torch, iter(loader), collate([data[0]]))


def test_what_looks_ahead_finds_a_batch_ready(session: Session) -> None:
    iterator: Any = iter(DataLoader(Numbers(), batch_size=4, num_workers=1))
    for _ in range(6):
        next(iterator)
    patience = time.monotonic() + 60
    while not workers_have_one(iterator) and time.monotonic() < patience:
        time.sleep(0.01)
    assert workers_have_one(iterator)


def test_everything_is_put_back(session: Session) -> None:
    tap = RepeatedBatches(session)
    before = firsts(DataLoader(Numbers(), batch_size=4))
    tap.install()
    tap.remove()
    assert firsts(DataLoader(Numbers(), batch_size=4)) == before
