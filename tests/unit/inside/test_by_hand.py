"""Updates without an optimizer count as those with one do, where the script zeroes its gradients."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from flatout.inside.by_hand import is_by_hand  # noqa: E402
from flatout.inside.session import Session  # noqa: E402
from flatout.records.session import BY_HAND, GUARD_FILE, Order  # noqa: E402

LR = 0.1


@pytest.fixture
def watching(tmp_path: Path) -> Iterator[Any]:
    made: list[Session] = []

    def watch(**order: Any) -> Session:
        made.append(Session(torch, Order(folder=str(tmp_path), **order)))
        made[-1].arm()
        return made[-1]

    as_found = torch.nn.Module.zero_grad
    yield watch
    for session in made:
        session.finish()
        session.disarm()
        assert not session.failed
    assert torch.nn.Module.zero_grad is as_found


def passes(model: Any, times: int = 1) -> None:
    for _ in range(times):
        model(torch.ones(4, 3)).square().mean().backward()


def update(model: Any) -> None:
    for parameter in model.parameters():
        parameter.data.add_(parameter.grad, alpha=-LR)


def model() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("backwards", [1, 3])
def test_each_time_that_gradients_are_zeroed_an_update_is_over(
    watching: Any, set_to_none: bool, backwards: int
) -> None:
    session, one = watching(), model()
    for _ in range(6):
        one.zero_grad(set_to_none=set_to_none)
        one.zero_grad(set_to_none=set_to_none)
        passes(one, backwards)
        update(one)
    one.zero_grad()
    assert session.updates == 6
    assert [is_by_hand(optimizer) for optimizer in session.optimizers()] == [True]
    assert session.describe()["optimizers"] == [BY_HAND]


def test_the_model_learns_what_it_learns_without_us(watching: Any) -> None:
    def learned() -> list[float]:
        one = model()
        for _ in range(8):
            one.zero_grad()
            passes(one)
            update(one)
        return [value for parameter in one.parameters() for value in parameter.flatten().tolist()]

    alone = learned()
    watching()
    assert learned() == alone


def test_a_script_with_an_optimizer_makes_none_by_hand(watching: Any) -> None:
    session, one = watching(), model()
    optimizer = torch.optim.SGD(one.parameters(), lr=LR)
    for _ in range(6):
        one.zero_grad()
        passes(one)
        optimizer.step()
    assert session.updates == 6
    assert session.optimizers() == [optimizer]


def test_an_optimizer_that_comes_later_takes_over(watching: Any) -> None:
    session, one = watching(), model()
    for _ in range(3):
        passes(one)
        update(one)
        one.zero_grad()
    optimizer = torch.optim.SGD(one.parameters(), lr=LR)
    for _ in range(100):
        passes(one)
        optimizer.step()
        one.zero_grad()
    assert session.updates > 3
    assert session.optimizers()[-1] is optimizer


def test_gradients_of_a_part_that_is_not_trained_are_none(watching: Any) -> None:
    session, one = watching(), model()
    for _ in range(3):
        with torch.no_grad():
            one(torch.ones(4, 3))
        one.zero_grad()
    assert session.updates == 0


def test_the_guard_sees_gradients_and_what_updates_change(watching: Any, tmp_path: Path) -> None:
    session, one = watching(guard_updates=4), model()
    for _ in range(5):
        one.zero_grad()
        passes(one)
        update(one)
    one.zero_grad()
    session.finish()
    [written] = (json.loads(path.read_text()) for path in tmp_path.rglob(GUARD_FILE))
    records = written["updates"]
    assert len(records) == 4
    for before, after in itertools.pairwise(records):
        assert after["before"] == before["after"]
        for name, gradient in after["gradients"].items():
            moved = [b - a for a, b in zip(after["before"][name], after["after"][name], strict=True)]
            assert moved == pytest.approx([-LR * value for value in gradient], abs=1e-5)
