"""`flatout run --on-nan rollback`, from inside: back to a good state of a script without checkpoints."""

import copy
import itertools
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
from flatout.runtime.finite.judging import diagnose
from flatout.runtime.finite.ledger import Ledger
from flatout.runtime.finite.snapshot import Snapshot, Training
from tests.unit.runtime.finite.test_scripts_that_nobody_changed import (
    NAN,
    Watched,
    equal,
    loss_of,
    network,
    weights,
)


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr(good_states, "_SHARE", 1e9)  # whatever they take
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


def test_running_statistics_that_were_spoiled_are_put_back_and_nothing_else(
    watched: Watched, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(4)
    model = nn.Sequential(norm, nn.Linear(4, 1))
    model.register_buffer("mask", torch.tensor([0.0, -torch.inf]))  # infinite for good, and no reason
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    train(model, optimizer, range(3))
    assert norm.running_mean is not None
    norm.running_mean.fill_(NAN)  # as by a batch that was left out
    seen = train(model, optimizer, range(3, 9))
    assert bool(norm.running_mean.isfinite().all())
    assert all(not equal(one[0], other[0]) for one, other in itertools.pairwise(seen))
    assert "buffers of the model held values that are no numbers" in capsys.readouterr().err
    assert (watched.counts()["rollbacks"], watched.counts()["made"]) == (0, 9)


def test_what_was_never_finite_or_becomes_infinite_by_design_ends_no_job(watched: Watched) -> None:
    model, optimizer = network()
    model.frozen = nn.Parameter(torch.full((3,), -torch.inf), requires_grad=False)
    model.register_buffer("late", torch.zeros(3))
    model.register_buffer("unused", torch.full((3,), NAN))
    train(model, optimizer, range(4))
    model.late.fill_(-torch.inf)
    train(model, optimizer, range(4, 30))
    assert (watched.counts()["made"], watched.counts()["rollbacks"]) == (30, 0)


def test_a_module_that_the_script_took_out_has_no_buffers_to_put_back(
    watched: Watched, capsys: pytest.CaptureFixture[str]
) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.linear, self.head = nn.BatchNorm1d(4), nn.Linear(4, 1), nn.BatchNorm1d(1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(self.norm(x))  # type: ignore[no-any-return]

    model = Two()
    optimizer = torch.optim.SGD([*model.norm.parameters(), *model.linear.parameters()], lr=0.01)
    train(model, optimizer, range(3))
    del model.head
    assert model.norm.running_mean is not None
    model.norm.running_mean.fill_(NAN)
    train(model, optimizer, range(3, 9))
    assert bool(model.norm.running_mean.isfinite().all())
    assert "they are as they were before" in capsys.readouterr().err


def test_states_that_hold_infinities_from_the_start_are_no_trouble(watched: Watched) -> None:
    class Smallest(torch.optim.SGD):
        """Keeps the smallest norm of a gradient so far."""

        def step(self, closure: Any = None) -> Any:
            for one in self.param_groups[0]["params"]:
                self.state[one].setdefault("smallest", torch.full((), torch.inf))
            return super().step(closure)

    model, _ = network()
    train(model, Smallest(model.parameters(), lr=0.01), range(20))
    assert (watched.counts()["made"], watched.counts()["rollbacks"]) == (20, 0)


def test_copies_lie_on_the_host_in_any_default_of_the_scripts() -> None:
    model, optimizer = network()
    train(model, optimizer, range(1))
    training = Training([model], [(Ledger(), optimizer)])
    torch.set_default_device("meta")
    torch.set_default_dtype(torch.float16)
    try:
        taken = Snapshot(torch, training, (), None)
        assert GoodStates(torch)._agreed([1e6], training) == [1e6]
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
    assert {one.device.type for one in taken.tensors.values()} == {"cpu"}


def test_a_buffer_that_is_made_anew_every_step_goes_back_by_its_name(watched: Watched) -> None:
    model, optimizer = network()
    model.register_buffer("mean", torch.zeros(()))
    for step in range(11):
        model.mean = model.mean + (NAN if step in (8, 9, 10) else 1.0)
        train(model, optimizer, range(1), bad=(0,) if step in (8, 9, 10) else ())
    assert float(model.mean) == 6.0  # type: ignore[arg-type]


def test_buffers_of_kinds_that_are_rare_are_kept_too(watched: Watched) -> None:
    model, optimizer = network()
    model.register_buffer("links", torch.eye(3).to_sparse())
    model.register_buffer("wide", torch.ones(1, 3).expand(4, 3))
    seen = train(model, optimizer, range(8))
    model.wide[:1].fill_(5.0)  # type: ignore[index, operator]
    train(model, optimizer, range(3), bad=(0, 1, 2))
    assert equal(weights(model), seen[5][0])
    assert torch.equal(model.links.to_dense(), torch.eye(3))  # type: ignore[operator]
    assert torch.equal(model.wide, torch.ones(4, 3))  # type: ignore[arg-type]


def test_a_tensor_that_cannot_be_copied_is_told_of_and_the_job_goes_on(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuses(*_: Any) -> Any:
        raise NotImplementedError("no such kernel")

    monkeypatch.setattr(Snapshot, "_on_host", refuses)
    model, optimizer = network()
    train(model, optimizer, range(9))
    said = capsys.readouterr().err
    assert said.count("nothing to go back to: NotImplementedError: no such kernel") == 1
    assert watched.counts()["made"] == 9


def test_what_cannot_be_put_back_ends_the_job(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: Any) -> Any:
        raise NotImplementedError("no such kernel")

    model, optimizer = network()
    train(model, optimizer, range(4))
    monkeypatch.setattr(Snapshot, "_write", refuses)
    with pytest.raises(SystemExit):
        train(model, optimizer, range(3), bad=(0, 1, 2))


def test_an_optimizer_that_takes_over_is_what_it_goes_back_to(watched: Watched) -> None:
    model, first = network(torch.optim.Adam)
    train(model, first, range(9))
    second = torch.optim.Adam(model.parameters(), lr=0.02)
    seen = train(model, second, range(80))
    _, states = train(model, second, range(3), bad=(0, 1, 2))[-1]
    place = next(at for at, one in enumerate(seen) if equal(one[0], weights(model)))
    assert place >= 76
    assert same_states(states, seen[place][1])


def test_one_that_stopped_in_trouble_is_no_reason_to_take_no_more(watched: Watched) -> None:
    model, first = network()
    train(model, first, range(5), bad=(4,))
    second = torch.optim.Adam(model.parameters(), lr=0.02)
    seen = train(model, second, range(80))
    train(model, second, range(3), bad=(0, 1, 2))
    assert any(equal(one[0], weights(model)) for one in seen[-5:])


def test_an_optimizer_that_comes_later_is_in_the_next_copy(watched: Watched) -> None:
    torch.manual_seed(0)
    critic, generator = nn.Linear(4, 1), nn.Linear(4, 4)
    both = {one: torch.optim.Adam(one.parameters(), lr=0.01) for one in (critic, generator)}

    def step(one: nn.Module, factor: float = 1.0) -> None:
        both[one].zero_grad()
        (critic(generator(torch.randn(6, 4))).pow(2).mean() * factor).backward()
        both[one].step()

    def round_of(factor: float = 1.0) -> None:
        for _ in range(5):
            step(critic, factor)
        step(generator, factor)

    watched.guest._good = GoodStates(torch, fewest_updates=1000)
    round_of()
    step(critic)
    kept = weights(critic, generator)
    assert equal(kept, weights(critic, generator))
    for _ in range(2):
        round_of()
    for _ in range(3):
        step(critic, NAN)
    assert equal(weights(critic, generator), kept)


def test_a_graph_that_is_under_way_still_runs_and_its_update_is_left_out(watched: Watched) -> None:
    torch.manual_seed(0)
    critic, generator = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)), nn.Linear(4, 4)
    theirs, ours = (torch.optim.Adam(one.parameters(), lr=0.01) for one in (critic, generator))

    def round_of(factor: float = 1.0) -> None:
        made = generator(torch.randn(6, 4))
        theirs.zero_grad()
        (critic(made.detach()).pow(2).mean() * factor).backward()
        theirs.step()
        ours.zero_grad()
        critic(made).mean().backward()  # of a generator as it was before it went back
        ours.step()

    seen = []
    for _ in range(12):
        round_of()
        seen.append(weights(generator))
    for _ in range(3):
        round_of(NAN)
    assert watched.counts()["rollbacks"] == 1
    now = weights(generator)
    assert any(equal(one, now) for one in seen)
    round_of()
    assert not equal(weights(generator), now)


def test_a_loss_scale_that_was_driven_down_comes_back(watched: Watched) -> None:
    model, optimizer = network()
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    train(model, optimizer, range(8), scaler=scaler)
    train(model, optimizer, range(4), bad=(0, 1, 2), scaler=scaler)
    # The host hears of the third with the fourth, at which the scaler grows nothing.
    assert watched.counts()["rollbacks"] == 1
    assert scaler.get_scale() == 256.0


def test_the_update_that_is_undone_spoils_no_average_of_the_scripts(watched: Watched) -> None:
    model, optimizer = network(fused=True)
    average = [one.detach().clone() for one in model.parameters()]

    def follow(*_: Any) -> None:
        for mean, one in zip(average, model.parameters(), strict=True):
            mean.lerp_(one.detach(), 0.1)

    train(model, optimizer, range(8))
    optimizer.register_step_post_hook(follow)
    watched.guest._lost = diagnose(torch, Ledger(), optimizer, [model], 0)
    watched.guest._troubled = watched.guest._ledger(optimizer)
    loss_of(model, NAN).backward()
    optimizer.step()
    assert all(bool(one.isfinite().all()) for one in average)


def test_where_one_copy_fits_and_no_two_the_newest_is_kept(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(good_states, "host_has_room", lambda _bytes: not watched.guest._good._kept)  # type: ignore[union-attr]
    model, optimizer = network(torch.optim.SGD)
    seen = train(model, optimizer, range(12))
    train(model, optimizer, range(3), bad=(0, 1, 2))
    assert equal(weights(model), seen[9][0])
    assert watched.counts()["rollbacks"] == 1


def test_memory_of_the_host_is_used_again_and_frozen_weights_take_none(watched: Watched) -> None:
    model, optimizer = network(torch.optim.Adam)
    model.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
    train(model, optimizer, range(3))
    first = watched.guest._good._kept[0]  # type: ignore[union-attr]
    held = {one.data_ptr() for one in first.tensors.values()}
    assert len(held) == 4 + 4 * 3
    train(model, optimizer, range(8))
    newest = watched.guest._good._kept[-1]  # type: ignore[union-attr]
    assert newest is not first
    assert {one.data_ptr() for one in newest.tensors.values()} == held


def test_a_teacher_that_follows_goes_back_too(watched: Watched) -> None:
    model, optimizer = network()
    model.teacher = nn.Parameter(torch.zeros(3), requires_grad=False)
    for _ in range(8):
        model.teacher.data += 1.0  # type: ignore[union-attr]
        train(model, optimizer, range(1))
    model.teacher.data.fill_(NAN)  # type: ignore[union-attr]
    train(model, optimizer, range(3), bad=(0, 1, 2))
    assert float(model.teacher[0]) == 6.0  # type: ignore[index]


def test_histories_in_lists_are_kept_on_the_host(watched: Watched) -> None:
    model, optimizer = network(torch.optim.LBFGS, max_iter=4)
    data = torch.randn(6, 4)

    def step(factor: float) -> None:
        def closure() -> Any:
            optimizer.zero_grad()
            loss = model(data).pow(2).mean() * factor
            loss.backward()
            return loss

        optimizer.step(closure)

    for _ in range(6):
        step(1.0)
    kept, states = weights(model), states_of(optimizer)[0]
    for _ in range(2):
        step(1.0)
    for _ in range(3):
        step(NAN)
    assert equal(weights(model), kept)
    now = states_of(optimizer)[0]
    assert now["n_iter"] == states["n_iter"]
    assert all(
        torch.equal(one, other) for one, other in zip(now["old_dirs"], states["old_dirs"], strict=True)
    )


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
    good, ledger = GoodStates(torch, fewest_updates=4), Ledger()
    ledger.made = 2
    training = Training([model], [(ledger, optimizer)])

    def is_due(made: int) -> bool:
        ledger.last_at = made
        return good.is_due(made, ledger, [ledger])

    assert is_due(2)
    assert good.keep(2, [ledger], training) == "sound"
    assert (is_due(5), is_due(6)) == (False, True)
    assert good.keep(102, [ledger], training) == "sound"
    assert (is_due(201), is_due(202)) == (False, True)
