"""A state comes back as it was, tensors and all; what is neither plain nor a tensor is refused by name."""

import collections
import enum
import json
import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.runtime.checkpoint.plain import Apart, NotPlain, NotTrusted, Together

KEYS = st.one_of(st.text(max_size=6), st.integers(), st.booleans(), st.none(), st.just("$tensor"))
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=8),
    st.binary(max_size=8),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(KEYS, inner, max_size=3),
        st.frozensets(st.integers(), max_size=3).map(set),
    ),
    max_leaves=12,
)


def there_and_back(state: dict[str, Any], **trust: bool) -> dict[str, Any]:
    apart = Apart(torch, pickles=trust.get("trust", False))
    text = json.dumps(apart.take(state), allow_nan=False)
    return Together(torch, lambda ref: apart.tensors[ref].clone(), **trust).state(json.loads(text))


@given(TREES)
@settings(max_examples=200, deadline=None)
def test_plain_data_comes_back_as_it_was(tree: Any) -> None:
    assert there_and_back({"scheduler": tree}) == {"scheduler": tree}


def test_tensors_and_their_kin_come_back() -> None:
    state = {
        "model": {"weight": torch.randn(2, 3), "count": torch.tensor(3), "empty": torch.zeros(0, 4)},
        "rest": {
            "dtype": torch.bfloat16,
            "device": torch.device("cpu"),
            "size": torch.Size([2, 3]),
            "array": np.arange(6.0).reshape(2, 3),
            "number": np.float32(0.5),
            "worst": [math.inf, -math.inf],
        },
    }
    back = there_and_back(state)
    assert all(torch.equal(back["model"][name], one) for name, one in state["model"].items())
    assert back["rest"]["dtype"] is torch.bfloat16
    assert back["rest"]["size"] == torch.Size([2, 3])
    assert isinstance(back["rest"]["size"], torch.Size)
    assert np.array_equal(back["rest"]["array"], state["rest"]["array"])
    assert back["rest"]["number"] == np.float32(0.5)
    assert back["rest"]["worst"] == [math.inf, -math.inf]
    assert math.isnan(there_and_back({"x": {"y": math.nan}})["x"]["y"])


def test_tied_weights_are_stored_once() -> None:
    weight = torch.randn(3, 3)
    apart = Apart(torch)
    apart.take({"model": {"a": weight, "b": weight, "transposed": weight.t(), "part": weight[:1]}})
    assert list(apart.tensors) == [("model", "a"), ("model", "transposed"), ("model", "part")]


def test_an_optimizer_goes_on_as_if_nothing_had_happened() -> None:
    def trained(steps: int, resumed: dict[str, Any] | None = None) -> Any:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.Adam(model.parameters())
        if resumed is not None:
            model.load_state_dict(resumed["model"])
            optimizer.load_state_dict(resumed["optimizer"])
        for _ in range(steps):
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    whole = trained(6)
    resumed = trained(3, there_and_back(trained(3)))
    assert all(torch.equal(whole["model"][name], one) for name, one in resumed["model"].items())


def test_containers_come_back_as_the_kind_that_they_were() -> None:
    state = {
        "counter": collections.Counter({3: 1, 6: 2}),
        "ordered": collections.OrderedDict(b=1, a={"$tensor": 2}),
        "lists": collections.defaultdict(list, {(1, 2): [torch.ones(1)]}),
        "none": collections.defaultdict(None, a=1),
        "frozen": frozenset({1, (2, 3)}),
        "keys": {frozenset({1}): 2},
        "names": {"a", "b"},
    }
    back = there_and_back({"it": state})["it"]
    assert back == state
    assert {name: type(one) for name, one in back.items()} == {name: type(one) for name, one in state.items()}
    assert list(back["ordered"]) == ["b", "a"]
    assert back["lists"].default_factory is list
    assert back["none"].default_factory is None
    assert type(next(iter(back["keys"]))) is frozenset


class Pair(NamedTuple):
    first: int
    second: int


class Bag(dict[str, int]):
    pass


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (Pair(1, 2), "Pair"),
        (Bag(a=1), "Bag"),
        (collections.defaultdict(lambda: 0), "defaultdict made by .*lambda"),
    ],
)
def test_containers_of_other_kinds_are_refused_by_name(value: Any, word: str) -> None:
    with pytest.raises(NotPlain, match=rf"it\.of is a .*{word}"):
        there_and_back({"it": {"of": value}})
    if "lambda" not in word:
        back = there_and_back({"it": {"of": value}}, trust=True)["it"]["of"]
        assert (type(back), back) == (type(value), value)


def test_what_was_stored_before_frozen_sets_had_a_mark_of_their_own_still_loads() -> None:
    stored = {"it": {"a": {"$set": [1, 2]}, "b": {"$tuple": [1]}, "c": {"$pairs": [[1, {"d": 2}]]}}}
    back = Together(torch, lambda _ref: None).state(stored)
    assert back == {"it": {"a": {1, 2}, "b": (1,), "c": {1: {"d": 2}}}}


class Colour(enum.Enum):
    RED = 1


def test_what_is_not_plain_is_named_and_pickled_only_for_those_who_trust() -> None:
    state = {"scheduler": {"best": [1, Colour.RED]}}
    with pytest.raises(NotPlain, match=r"scheduler\.best\.1 is a .*Colour"):
        there_and_back(state)
    assert there_and_back(state, trust=True) == state
    apart = Apart(torch, pickles=True)
    text = json.loads(json.dumps(apart.take(state)))
    with pytest.raises(NotTrusted):
        Together(torch, lambda ref: apart.tensors[ref]).state(text)


@pytest.mark.parametrize("plain", [{"x": {"$nobody": 1}}, {"x": {"$dtype": "save"}}])
def test_nonsense_is_no_state(plain: dict[str, Any]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        Together(torch, lambda _ref: None).state(plain)
