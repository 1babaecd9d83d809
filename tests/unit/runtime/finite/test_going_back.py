"""`flatout run --on-nan rollback`, from inside: back to a good state of a script without checkpoints."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from flatout.records.finite import NOT_FINITE_FILE
from flatout.runtime.finite import good_states
from flatout.runtime.finite.good_states import GoodStates
from tests.unit.runtime.finite.test_scripts_that_nobody_changed import (
    NAN,
    Watched,
    equal,
    loss_of,
    network,
    weights,
)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    made = Watched(tmp_path, on_nan="rollback", patience=3)
    made.guest._good = GoodStates(torch, fewest_updates=4)
    yield made
    made.leave()


def states_of(optimizer: Any) -> Any:
    return copy.deepcopy(optimizer.state_dict()["state"])


def same_states(some: Any, others: Any) -> bool:
    return all(torch.equal(some[key][name], others[key][name]) for key in some for name in some[key])


def train(
    model: nn.Module, optimizer: Any, steps: range, bad: tuple[int, ...] = (), scaler: Any = None
) -> Any:
    """After each update, from the first: weights and states."""
    seen = []
    for step in steps:
        optimizer.zero_grad()
        loss = loss_of(model, NAN if step in bad else 1.0)
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
        seen.append((weights(model), states_of(optimizer)))
    return seen


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (torch.optim.AdamW, {}),
        (torch.optim.AdamW, {"fused": True}),
        (torch.optim.SGD, {"momentum": 0.9}),
    ],
)
def test_after_too_many_in_a_row_weights_and_states_are_those_of_the_last_copy(
    watched: Watched, kind: Any, settings: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    model, optimizer = network(kind, **settings)
    # Copies after updates 2 and 6; bad are the 9th to 11th.
    seen = train(model, optimizer, range(11), bad=(8, 9, 10))
    now, states = seen[-1]
    assert equal(now, seen[5][0])
    assert not equal(now, seen[7][0])
    assert same_states(states, seen[5][1])
    assert "3 updates in a row (9 to 11) have gradients" in capsys.readouterr().err
    # It goes on, and differs from what it went back to.
    assert not equal(train(model, optimizer, range(11, 12))[-1][0], now)
    counts = watched.counts()
    assert (counts["made"], counts["skipped"], counts["rollbacks"], counts["in_a_row"]) == (9, 3, 1, 0)


def test_with_a_scaler_the_update_that_came_too_late_is_undone(watched: Watched) -> None:
    model, optimizer = network()
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    seen = train(model, optimizer, range(12), bad=(8, 9, 10), scaler=scaler)
    # The host learns of the eleventh before the twelfth is made, whose gradients are of the lost state.
    assert equal(seen[11][0], seen[5][0])
    assert same_states(seen[11][1], seen[5][1])
    assert watched.counts()["rollbacks"] == 1


def test_trouble_that_comes_back_at_once_goes_back_further_and_at_last_ends_the_job(watched: Watched) -> None:
    model, optimizer = network()
    seen = train(model, optimizer, range(8))
    train(model, optimizer, range(3), bad=(0, 1, 2))
    assert equal(weights(model), seen[5][0])
    train(model, optimizer, range(3), bad=(0, 1, 2))
    assert equal(weights(model), seen[1][0])
    train(model, optimizer, range(3), bad=(0, 1, 2))
    assert equal(weights(model), seen[1][0])
    with pytest.raises(SystemExit) as ended:
        train(model, optimizer, range(3), bad=(0, 1, 2))
    assert ended.value.code == 4
    assert json.loads((watched.session.folder() / NOT_FINITE_FILE).read_text())["in_a_row"] == 3


def test_without_a_good_state_the_job_ends(watched: Watched) -> None:
    model, optimizer = network()
    with pytest.raises(SystemExit):
        train(model, optimizer, range(3), bad=(0, 1, 2))


def test_running_statistics_that_were_spoiled_are_put_back_though_no_gradient_tells(watched: Watched) -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(4)
    model = nn.Sequential(norm, nn.Linear(4, 1))
    model.register_buffer("mask", torch.tensor([0.0, -torch.inf]))  # infinite for good, and no reason
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    train(model, optimizer, range(3))
    kept = norm.running_mean
    assert kept is not None
    kept.fill_(NAN)  # as by a batch that was left out
    train(model, optimizer, range(3, 9))
    assert bool(norm.running_mean.isfinite().all())  # type: ignore[union-attr]
    assert watched.counts()["rollbacks"] == 1
    assert watched.counts()["skipped"] == 0


def test_of_two_optimizers_all_go_back_together(watched: Watched) -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(4, 4), nn.Linear(4, 1)
    ours, theirs = (torch.optim.Adam(one.parameters(), lr=0.01) for one in (first, second))

    def both(factor: float) -> Any:
        for one in (ours, theirs):
            one.zero_grad()
        (second(first(torch.randn(6, 4))).pow(2).mean() * factor).backward()
        ours.step()
        theirs.step()
        return weights(first, second), states_of(ours), states_of(theirs)

    seen = [both(1.0) for _ in range(8)]
    for _ in range(2):
        both(NAN)
    now = both(NAN)
    place = next(at for at, one in enumerate(seen) if equal(one[0][:2], now[0][:2]))
    assert same_states(seen[place][1], now[1])
    assert watched.counts()["rollbacks"] >= 1
    both(1.0)
    assert all(bool(one.isfinite().all()) for one in weights(first, second))


def test_where_the_host_has_no_room_it_is_said_and_bad_updates_end_the_job(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(good_states, "host_has_room", lambda _bytes: False)
    model, optimizer = network()
    train(model, optimizer, range(6))
    assert capsys.readouterr().err.count("nothing to go back to: the host has no room") == 1
    with pytest.raises(SystemExit):
        train(model, optimizer, range(3), bad=(0, 1, 2))


def test_slow_copies_are_taken_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 101.0, 102.0])  # a copy takes a second, and so does each update
    monkeypatch.setattr(good_states.time, "monotonic", lambda: next(clock))
    model, optimizer = network()
    good = GoodStates(torch, fewest_updates=4)
    assert good.is_due(2)
    assert good.keep(2, [model], [optimizer])
    assert (good.is_due(5), good.is_due(6)) == (False, True)
    assert good.keep(102, [model], [optimizer])
    assert (good.is_due(201), good.is_due(202)) == (False, True)
