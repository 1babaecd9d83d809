"""Levers in a running process: on from the first training call, off without a trace, dropped if they fail."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from flatout.inside.session import Session
from flatout.levers import catalogue
from flatout.levers.lever import Broken, Call, Lever, Refused
from flatout.records.session import Order


class Doubling(Lever):
    """Doubles what a root returns."""

    id = "doubling"
    title = "doubling"
    safety = "exact"
    layer = 10
    log: ClassVar[list[str]] = []

    def apply(self) -> None:
        if self.settings.get("refuse"):
            raise Refused("not here")
        self.log.append("apply")

    def undo(self) -> None:
        self.log.append("undo")

    def around(self, root: Any, call: Call) -> Call:
        def doubled(*args: Any, **kwargs: Any) -> Any:
            if self.settings.get("breaks"):
                torch.rand(1)
                raise ValueError("planted")
            if self.settings.get("broken"):
                raise Broken(self.id, "it can hold no longer")
            if self.settings.get("useless"):
                self.useless = "it does nothing"
            return 2 * call(*args, **kwargs)

        return doubled


@pytest.fixture(autouse=True)
def with_a_lever_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(catalogue.BY_ID, "doubling", Doubling)
    Doubling.log = []


class Watched:
    def __init__(self, folder: Path, **order: Any) -> None:
        self.session = Session(torch, Order(folder=str(folder), **order))
        self.session.arm()

    def close(self) -> None:
        self.session.finish()
        self.session.disarm()


@pytest.fixture
def watching(tmp_path: Path) -> Iterator[Any]:
    made: list[Watched] = []

    def make(*levers: dict[str, Any], **order: Any) -> Session:
        made.append(Watched(tmp_path, levers=levers, **order))
        return made[-1].session

    yield make
    for one in made:
        one.close()


def train(model: nn.Module, steps: int = 3, optimizer: Any = None) -> list[float]:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.0)
    model.train()
    seen = []
    for _ in range(steps):
        out = model(torch.ones(1, 2)).sum()
        optimizer.zero_grad()
        out.backward()
        optimizer.step()
        seen.append(out.item())
    return seen


def ones() -> nn.Module:
    model = nn.Linear(2, 1, bias=False)
    nn.init.ones_(model.weight)
    return model


def test_a_lever_is_on_from_the_first_training_call(watching: Any) -> None:
    session = watching({"id": "doubling"})
    assert train(ones()) == [4.0, 4.0, 4.0]
    assert session.facts["levers"]["doubling"] == {"applied": True}


def test_evaluation_runs_as_written(watching: Any) -> None:
    watching({"id": "doubling"})
    model = ones()
    train(model)
    with torch.no_grad():
        assert model(torch.ones(1, 2)).item() == 2.0
    model.eval()
    assert model(torch.ones(1, 2)).item() == 2.0


def test_the_model_is_left_as_it_was_found(watching: Any) -> None:
    hooks = importlib.import_module("torch.optim.optimizer")._global_optimizer_post_hooks
    before = dict(hooks)
    session = watching({"id": "doubling"})
    model = ones()
    train(model)
    assert list(model.state_dict()) == ["weight"]
    session.disarm()
    assert dict(hooks) == before
    assert "_compiled_call_impl" not in model.__dict__
    assert model(torch.ones(1, 2)).item() == 2.0
    assert Doubling.log == ["apply"]


def test_a_lever_that_fails_is_dropped_and_the_call_runs_as_written(watching: Any) -> None:
    session = watching({"id": "doubling", "settings": {"breaks": True}})
    model = ones()
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    assert train(model) == [2.0, 2.0, 2.0]
    assert torch.equal(torch.rand(1), expected)  # what it drew was put back
    assert session.facts["levers"]["doubling"]["dropped"] == "ValueError: planted"
    assert not session.failed
    assert Doubling.log == ["apply", "undo"]


def test_an_error_of_the_scripts_own_is_not_the_levers(watching: Any) -> None:
    session = watching({"id": "doubling"})
    model = ones().train()
    with pytest.raises(RuntimeError, match="shapes"):
        model(torch.ones(1, 3))
    assert "dropped" not in session.facts["levers"]["doubling"]


@pytest.mark.parametrize(
    ("lever", "says"),
    [
        ({"id": "doubling", "settings": {"refuse": True}}, "not here"),
        ({"id": "from the future"}, "this version of Flatout does not know it"),
    ],
)
def test_what_cannot_be_applied_is_dropped_with_a_word(
    watching: Any, lever: dict[str, Any], says: str
) -> None:
    session = watching(lever)
    assert train(ones()) == [2.0, 2.0, 2.0]
    assert session.facts["levers"][lever["id"]]["dropped"] == says


def test_levers_take_turns_at_step_boundaries(watching: Any) -> None:
    session = watching(bench=True)
    bench = session.bench
    assert bench is not None
    model = ones()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    train(model, 2, optimizer)
    arms = [[], [{"id": "doubling"}]]
    bench._next = {
        "generation": 1,
        "numbers": [0, 1],
        "arms": arms,
        "block_updates": [3, 3],
        "from_update": 0,
    }
    assert train(model, 10, optimizer)[1:] == [2.0, 2.0, 2.0, 4.0, 4.0, 4.0, 2.0, 2.0, 2.0]
    assert Doubling.log == ["apply", "undo", "apply"]  # the last block is over, the next has begun


def test_two_roots_have_a_seat_each(watching: Any) -> None:
    watching({"id": "doubling"})
    first, second = ones(), ones()
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.0)
    first.train()
    second.train()
    seen = []
    for _ in range(3):
        out = second(first(torch.ones(1, 2)).expand(1, 2))
        optimizer.zero_grad()
        out.sum().backward()
        optimizer.step()
        seen.append(out.item())
    assert seen == [16.0, 16.0, 16.0]


def test_who_came_on_last_is_blamed_and_the_others_stay(watching: Any) -> None:
    session = watching({"id": "doubling", "settings": {}}, {"id": "doubling", "settings": {"breaks": True}})
    assert train(ones()) == [2.0, 4.0, 4.0]  # as written, then without the one that breaks
    assert [key for key in session.scene._dropped if "breaks" in key] == list(session.scene._dropped)


def test_settings_that_failed_do_not_keep_others_from_being_tried(watching: Any) -> None:
    session = watching({"id": "doubling", "settings": {"breaks": True}}, bench=True)
    model = ones()
    assert train(model) == [2.0, 2.0, 2.0]
    session.scene.switch([{"id": "doubling", "settings": {}}])
    assert train(model) == [4.0, 4.0, 4.0]
    session.scene.switch([{"id": "doubling", "settings": {"breaks": True}}])
    assert train(model) == [2.0, 2.0, 2.0]


def test_a_lever_that_does_nothing_goes_and_its_call_stands(watching: Any) -> None:
    session = watching({"id": "doubling", "settings": {"useless": True}})
    assert train(ones()) == [4.0, 2.0, 2.0]
    assert session.facts["levers"]["doubling"]["dropped"] == "it does nothing"


def test_a_lever_that_says_that_it_can_hold_no_longer_is_the_one_to_go(watching: Any) -> None:
    watching({"id": "doubling", "settings": {"broken": True}}, {"id": "doubling", "settings": {}})
    assert train(ones()) == [2.0, 4.0, 4.0]


def test_what_a_dropped_lever_keeps_is_given_back_when_its_step_is_over(
    watching: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone: list[str] = []
    monkeypatch.setattr(Doubling, "let_go", lambda lever: gone.append(lever.settings["name"]))
    ways = ({"name": "broken", "broken": True}, {"name": "good"})
    session = watching(*({"id": "doubling", "settings": way} for way in ways), check_levers=True)
    model, optimizer = ones(), None
    assert model(torch.ones(1, 2)).item() == 2.0
    assert session.facts["levers"]["doubling"]["dropped"] == "it can hold no longer"
    assert gone == [], "what the call has left may still be needed"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert gone == ["broken"]
    assert model(torch.ones(1, 2)).item() == 4.0


def test_who_came_on_last_goes_first(watching: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gone: list[str] = []
    monkeypatch.setattr(Doubling, "undo", lambda lever: gone.append(lever.settings["name"]))
    session = watching(*({"id": "doubling", "settings": {"name": name}} for name in ("first", "second")))
    train(ones())
    session.scene.switch([])
    assert gone == ["second", "first"]


def test_a_call_that_the_script_captures_runs_as_written(
    watching: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> Any:
        raise RuntimeError("Cannot call CUDAGeneratorImpl::current_seed during CUDA graph capture.")

    session = watching({"id": "doubling"})
    model = ones()
    assert train(model) == [4.0, 4.0, 4.0]
    monkeypatch.setattr(session.scene, "device", torch.device("cuda"))
    monkeypatch.setattr(session, "on_gpu", True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", refused)
    assert model(torch.ones(1, 2)).item() == 2.0
    assert not session.failed
    monkeypatch.undo()


def test_a_loss_that_is_a_module_is_no_model_of_its_own(watching: Any) -> None:
    session = watching(pair_updates=2)
    model, criterion = nn.Linear(2, 3), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        criterion(model(torch.ones(4, 2)), torch.tensor([0, 1, 2, 0])).backward()
        optimizer.step()
    assert session.roots() == [model]
    assert len(session.pairing.describe()["inputs"]) == 2
