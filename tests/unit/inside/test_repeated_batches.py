"""Batches that are yielded again: as many as the loader has, unseen by the script."""

import collections
import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from flatout.inside.repeated_batches import RepeatedBatches
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


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    session = Session(torch, Order(folder=str(tmp_path)))
    tap = RepeatedBatches(session)
    tap.install()
    yield session
    tap.remove()


def firsts(loader: Any) -> list[float]:
    return [float(batch["x"][0, 0]) for batch in loader]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("lasting", [False, True])
def test_two_batches_fill_epochs_of_the_same_length(session: Session, workers: int, lasting: bool) -> None:
    loader = DataLoader(
        Numbers(), batch_size=4, num_workers=workers, persistent_workers=lasting and workers > 0
    )
    for _ in range(3):
        assert firsts(loader) == [0.0, 4.0] * 5
    assert "batches_not_repeated" not in session.facts


def test_items_are_made_for_two_batches_alone(session: Session) -> None:
    data = Numbers()
    assert len(firsts(DataLoader(data, batch_size=4))) == 10
    assert data.asked == list(range(8))


def test_a_script_may_take_its_batch_apart(session: Session) -> None:
    seen = []
    for batch in DataLoader(Numbers(), batch_size=4):
        seen.append((batch.pop("x").shape, batch.pop("name")))
        assert not batch
    assert len(seen) == 10
    assert seen[9][1] == [f"number {place}" for place in range(4, 8)]


def test_a_script_that_changes_its_batches_gets_new_ones(session: Session) -> None:
    seen = []
    for batch in DataLoader(Numbers(), batch_size=4):
        seen.append(float(batch["x"][0, 0]))
        batch["x"].sub_(1000)
    assert all(value >= 0 for value in seen)
    assert seen[2] == 8.0
    assert session.facts["batches_not_repeated"] == "the script changes its batches"


def test_a_loader_without_a_length_yields_its_own(session: Session) -> None:
    assert [int(batch[0]) for batch in DataLoader(Endless(), batch_size=3)] == list(range(0, 30, 3))
    assert session.facts["batches_not_repeated"] == "the loader has no length"


@pytest.mark.parametrize(
    "collate",
    [lambda items: Odd(items[0]["x"]), lambda items: collections.Counter[str], lambda items: {1, 2}],
)
def test_what_nobody_knows_is_not_repeated(session: Session, collate: Callable[..., Any]) -> None:
    data = Numbers()
    assert len(list(DataLoader(data, batch_size=4, collate_fn=collate))) == 10
    assert data.asked == list(range(40))


def test_what_looks_ahead_finds_a_batch_ready(session: Session) -> None:
    iterator: Any = iter(DataLoader(Numbers(), batch_size=4, num_workers=1))
    for _ in range(6):
        next(iterator)
    patience = time.monotonic() + 20
    while not workers_have_one(iterator) and time.monotonic() < patience:
        time.sleep(0.01)
    assert workers_have_one(iterator)


def test_everything_is_put_back(tmp_path: Path) -> None:
    before = firsts(DataLoader(Numbers(), batch_size=4))
    tap = RepeatedBatches(Session(torch, Order(folder=str(tmp_path))))
    tap.install()
    tap.remove()
    assert firsts(DataLoader(Numbers(), batch_size=4)) == before
