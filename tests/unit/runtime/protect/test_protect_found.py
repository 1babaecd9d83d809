"""What a training consists of, and what is put back into it."""

import functools
import random
import sys
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from flatout.runtime.checkpoint.plain import Apart, NotPlain  # noqa: E402
from flatout.runtime.protect import found as finding  # noqa: E402
from flatout.runtime.protect import long_lists  # noqa: E402
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
    bags.hold(around(trainer), [], is_plain)
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
        model.outputs = [torch.zeros(()) for _ in range(300)]
        model.data = [torch.zeros(32)] * 5000  # longer lists of larger things are data
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
    # Whoever runs the tests has variables, too.
    assert [name for name in found.stateful if name.startswith(here)] == [f"{here}.loop"]


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


def is_plain(state: Any) -> bool:
    try:
        Apart(torch).take({"state": state})
    except NotPlain:
        return False
    return True


def saved_and_left_out(variables: dict[str, Any]) -> tuple[set[str], set[str]]:
    """Of these variables of a function: the tensors that are saved, and what is told of as not saved."""

    def inner(own: dict[str, Any]) -> Found:
        return look_around(torch, sys._getframe())

    with ThreadPoolExecutor() as alone:  # under way is nothing but that function
        found = alone.submit(inner, variables).result()
    here = "test_protect_found.py:inner.own"
    left_out = Bags(torch).hold(found, [], is_plain)
    assert not any(isinstance(one, finding.OutOfReach) for one in found.stateful.values())
    own = {name.removeprefix(here) for name in found.tensors if name.startswith(here)}
    return own, {name.removeprefix(here) for name in left_out if name.startswith((here, "1 more"))}


def averages(count: int, size: int = 32) -> list[Any]:
    return [torch.zeros(size).mul_(0.9) for _ in range(count)]


class Slots:
    __slots__ = ("__hidden", "average", "unset")

    def __init__(self) -> None:
        self.average = torch.zeros(3)
        self.__hidden = torch.zeros(4)

    def update(self) -> int:
        return self.__hidden.numel()


def an_average() -> Callable[[], Any]:
    shadow = torch.zeros(5)

    def update() -> Any:
        return shadow.mul_(0.9)

    return update


def test_whatever_holds_a_tensor_it_is_found() -> None:
    model = torch.nn.Linear(2, 2)
    slots = Slots()
    saved, left_out = saved_and_left_out(
        {
            "by_parameter": {one: torch.zeros(2) for one in model.parameters()},
            "slots": slots,
            "last": deque([torch.zeros(1)], maxlen=3),
            "update": an_average(),
            "method": Slots().update,
            "partial": functools.partial(print, torch.zeros(2)),
        }
    )
    assert saved == {
        "['by_parameter'].values()[0]",
        "['by_parameter'].values()[1]",
        "['slots'].average",
        "['slots']._Slots__hidden",
        "['last'][0]",
        "['update'](shadow)",
        "['method'].__self__.average",
        "['method'].__self__._Slots__hidden",
        "['partial'].args[0]",
    }
    assert not left_out


def test_long_lists_of_averages_and_histories_are_found_and_of_data_only_short_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(long_lists, "_MOST_BYTES", 300 * 128)
    many = torch.nn.ModuleList([torch.nn.Linear(2, 2) for _ in range(2100)])
    saved, left_out = saved_and_left_out(
        {
            "model": many,
            "of_all": averages(4200),
            "of_some": averages(300),
            "rebound": [torch.zeros(2, 2)] * 300,
            "losses": [torch.zeros(()) for _ in range(5000)],
            "data": [torch.zeros(32) for _ in range(300)],
            "more_data": [(torch.zeros(32), 1) for _ in range(301)],
        }
    )
    assert not left_out
    ways = [name.partition("]")[0] for name in saved]
    counts = {way.strip("[']"): ways.count(way) for way in ways}
    assert counts == {"of_all": 4200, "of_some": 300, "rebound": 1, "losses": 5000, "data": 300}


def test_what_is_beyond_a_limit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    deep: Any = torch.zeros(2).add_(1)
    for _ in range(8):
        deep = [deep]
    model = torch.nn.Linear(2, 2)
    variables = {
        "deep": deep,
        "of_no_model": averages(5000),
        "losses": [torch.zeros(())] * 20000,
        "set": {torch.zeros(3)},
        "loaders": {torch.utils.data.TensorDataset(torch.zeros(3))},
        "known": {*model.parameters(), model},
        "model": model,
        "data": [torch.zeros(32)] * 5000,
        "bank": deque(torch.zeros(32) for _ in range(5000)),
        "numbers": list(range(100000)),
    }
    saved, left_out = saved_and_left_out(variables)
    assert saved == set()
    named = {"['deep']" + "[0]" * 5, "['of_no_model']", "['losses']", "['set']"}
    assert left_out == named
    variables["bank"].rotate()  # what changes is no data
    for _ in range(2):
        assert saved_and_left_out(variables)[1] == named | {"['bank']"}
    monkeypatch.setattr(finding, "_MOST_NAMES", 4)
    assert "1 more" in saved_and_left_out(variables)[1]


def test_a_search_that_is_cut_short_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "_MOST", 5)
    _, left_out = saved_and_left_out({f"{at}": torch.zeros(1) for at in range(9)})
    assert any(name.endswith(" and what comes after it") for name in left_out)


def test_a_shorter_way_is_found_after_a_longer_one() -> None:
    average = {"of": {"it": torch.zeros(2)}}
    long: Any = average
    for _ in range(6):
        long = [long]
    saved, left_out = saved_and_left_out({"long": long, "short": average})
    assert saved == {"['short']['of']['it']"}
    assert not left_out
