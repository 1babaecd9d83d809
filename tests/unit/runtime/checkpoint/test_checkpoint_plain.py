"""A state comes back as it was, tensors and all; what is neither plain nor a tensor is refused by name."""

import enum
import json
import math
from typing import Any

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
