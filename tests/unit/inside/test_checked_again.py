"""Levers of a plan are judged by what the script turns out to have, whenever that shows."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from flatout.inside.checked_again import CheckedAgain
from flatout.inside.session import Session
from flatout.levers.compile import Compile
from flatout.levers.compiled_graphs import graphs_compiled
from flatout.records.session import Order
from flatout.runtime.observing import take_off


@pytest.fixture
def under(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    # What other tests of this process have compiled is nothing that a script did.
    monkeypatch.setitem(torch._dynamo.utils.counters["stats"], "unique_graphs", 0)
    made: list[Session] = []

    def arm(*levers: str) -> Session:
        wanted = tuple({"id": lever} for lever in levers)
        made.append(Session(torch, Order(folder=str(tmp_path), levers=wanted, check_levers=True)))
        made[-1].arm()
        return made[-1]

    yield arm
    for session in made:
        take_off(session)


def update(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def encoder() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 192), nn.Unflatten(1, (3, 8, 8)))


def decoder() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Flatten())


def test_what_one_root_lacks_may_be_in_another(under: Any) -> None:
    session = under("channels-last")
    first, second = encoder(), decoder()
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    for _ in range(3):
        update(optimizer, second(first(torch.randn(4, 8))).pow(2).mean())
    assert session.facts["levers"]["channels-last"] == {"applied": True}


def test_what_no_root_has_is_dropped_with_the_reason(under: Any) -> None:
    session = under("channels-last")
    first, second = encoder(), nn.Flatten()
    optimizer = torch.optim.SGD(first.parameters(), lr=0.1)
    for _ in range(3):
        update(optimizer, second(first(torch.randn(4, 8))).pow(2).mean())
    assert "convolution" in session.facts["levers"]["channels-last"]["dropped"]


def test_an_optimizer_may_come_after_the_models_first_call(under: Any) -> None:
    session = under("fused-optimizer")
    model = decoder()
    model(torch.zeros(1, 3, 8, 8))  # to see how wide a head must be
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        update(optimizer, model(torch.randn(4, 3, 8, 8)).pow(2).mean())
    assert session.facts["levers"]["fused-optimizer"] == {"applied": True}
    assert optimizer.param_groups[0]["fused"]


def test_what_a_lever_has_compiled_for_one_model_is_not_the_scripts_own_doing(
    under: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a GAN, whose second model comes when the first is compiled already."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    session = under("compile")
    models = nn.Linear(4, 1), nn.Linear(4, 2)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    before = graphs_compiled() or 0
    for _ in range(3):
        for model, optimizer in zip(models, optimizers, strict=True):
            update(optimizer, model(torch.randn(8, 4)).pow(2).mean())
    assert session.facts["levers"]["compile"] == {"applied": True}
    assert (graphs_compiled() or 0) >= before + 2


def test_a_script_that_compiles_a_model_itself_keeps_it_as_it_is(
    under: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = under("compile")
    model = torch.compile(nn.Linear(4, 1), backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        update(optimizer, model(torch.randn(8, 4)).pow(2).mean())
    assert "compiles itself" in session.facts["levers"]["compile"]["dropped"]


@pytest.mark.parametrize(("count", "is_refused"), [(1, False), (2, True)])
def test_cuda_graphs_of_a_plan_are_for_one_model(
    under: Any, monkeypatch: pytest.MonkeyPatch, count: int, is_refused: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    models = [nn.Linear(4, 1) for _ in range(count)]
    optimizers = [torch.optim.SGD(models[0].parameters(), lr=0.1)]
    checked = CheckedAgain(under(), models, optimizers, torch.device("cuda"), None)
    for mode in ("reduce-overhead", "max-autotune"):
        assert ("several models" in checked.refusal(Compile, {"mode": mode})) == is_refused
    assert checked.refusal(Compile, {"mode": "default"}) == ""
