"""What a training consists of, and what is put back into it."""

import random
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from flatout.runtime.protect.found import Found, look_around  # noqa: E402
from flatout.runtime.protect.parts import Bags  # noqa: E402


class Trainer:
    def __init__(self) -> None:
        self.model = torch.nn.Linear(2, 2)
        self.schedules = [
            torch.optim.lr_scheduler.StepLR(torch.optim.SGD(self.model.parameters(), lr=1.0), 1)
        ]
        self.numbers = {"own": random.Random(3)}
        self.average = torch.zeros(2)


def around(trainer: Trainer) -> Found:
    layer = trainer.model  # the same by another name
    assert layer is not None
    return look_around(torch, sys._getframe())


def test_all_of_it_is_found_by_the_way_to_it() -> None:
    found = around(Trainer())
    here = "test_protect_found.py:around"
    assert f"{here}.trainer.model" in found.modules
    assert sum(isinstance(one, torch.nn.Linear) for one in found.modules.values()) == 1
    assert f"{here}.trainer.schedules[0]" in found.stateful
    assert f"{here}.trainer.numbers['own']" in found.generators
    assert f"{here}.trainer.average" in found.tensors


def test_a_part_of_a_module_belongs_to_the_whole() -> None:
    def inner() -> Found:
        part = torch.nn.Linear(2, 2)
        whole = torch.nn.Sequential(part, torch.nn.ReLU())
        assert whole is not None
        return look_around(torch, sys._getframe())

    names = [name for name in inner().modules if ":inner." in name]
    assert names == ["test_protect_found.py:inner.whole"]


def test_states_come_back_by_name_and_what_is_missing_is_told() -> None:
    trainer = Trainer()
    bags = Bags(torch)
    bags.hold(around(trainer), [], lambda _state: True)
    parts = bags.parts()
    state = {name: part.state_dict() for name, part in parts.items()}
    state["modules"] = {
        name: {key: value.clone() for key, value in one.items()} for name, one in state["modules"].items()
    }
    drawn = trainer.numbers["own"].random()
    with torch.no_grad():
        trainer.model.weight.fill_(9)
    for name, part in parts.items():
        part.load_state_dict(state[name])
    assert not (trainer.model.weight == 9).any()
    assert trainer.numbers["own"].random() == drawn
    assert bags.missing == []
    parts["modules"].load_state_dict({"train.py:main.gone": {"weight": torch.zeros(1)}})
    assert bags.missing == ["train.py:main.gone.weight"]


def test_a_part_of_the_data_is_not_written_over() -> None:
    data: Any = torch.arange(10.0)
    found = Found()
    found.tensors = {"batch": data[2:4], "own": torch.zeros(2)}
    bags = Bags(torch)
    bags.hold(found, [], lambda _state: True)
    bags.load_tensors({"batch": torch.full((2,), 7.0), "own": torch.full((2,), 7.0)})
    assert data.tolist() == list(range(10))
    assert found.tensors["own"].tolist() == [7.0, 7.0]


def test_a_loss_that_stands_in_a_larger_storage_comes_back() -> None:
    loss = torch.nn.functional.mse_loss(torch.ones(4, 1), torch.zeros(4, 1))
    assert loss.untyped_storage().nbytes() > loss.element_size()
    found = Found()
    found.tensors = {"loss": loss}
    bags = Bags(torch)
    bags.hold(found, [], lambda _state: True)
    bags.load_tensors({"loss": torch.full((), 0.25)})
    assert loss.item() == 0.25


class Loop:
    """Knows a state of numbers, and holds a tensor that is none of it, as loops of Lightning do."""

    def __init__(self) -> None:
        self.step = 3
        self.loaded = 0
        self.results = {"loss": torch.full((), 2.0)}

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state["step"]
        self.loaded += 1


def test_tensors_beside_parameters_and_beside_states_are_found() -> None:
    def inner() -> tuple[Found, str]:
        model = torch.nn.Sequential(torch.nn.Linear(2, 2))
        model[0].sums = torch.zeros(3)
        model.outputs = [torch.zeros(()) for _ in range(300)]  # longer lists of larger things are data
        model.data = [torch.zeros(32) for _ in range(300)]
        loop = Loop()
        assert loop.step
        return look_around(torch, sys._getframe()), "test_protect_found.py:inner"

    found, here = inner()
    names = {name for name in found.tensors if name.startswith(here)}
    assert names == {
        f"{here}.model.0.sums",
        f"{here}.loop.results['loss']",
        *(f"{here}.model.outputs[{at}]" for at in range(300)),
    }
    assert list(found.stateful) == [f"{here}.loop"]


def test_what_is_as_it_was_is_not_loaded() -> None:
    found, loop = Found(), Loop()
    found.stateful = {"loop": loop}
    bags = Bags(torch)
    bags.hold(found, [], lambda _state: True)
    others = bags.parts()["others"]
    others.load_state_dict({"loop": {"state": {"step": 3}, "found_inf": {}}})
    assert loop.loaded == 0
    others.load_state_dict({"loop": {"state": {"step": 4}, "found_inf": {}}})
    assert (loop.loaded, loop.step) == (1, 4)
