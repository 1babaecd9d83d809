"""Seats on modules: replicas, wrappers, and calls of all kinds."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from flatout.analyze.replay import Replay
from flatout.inside import evaluation_calls
from flatout.inside.seats import REPLICATED
from flatout.inside.session import Session
from flatout.records.session import Order

SOME_LEVER = {"id": "debug-modes"}


class Noting(nn.Module):
    """Notes whether it was called itself, or as a replica."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.replicas: list[bool] = []

    def forward(self, x: Any) -> Any:
        self.replicas.append("_is_replica" in self.__dict__)
        return x * self.weight


class DataParallel(nn.DataParallel):
    """Torch's, with its replicas on the host: made and called as on two GPUs."""

    def __init__(self, module: nn.Module) -> None:
        nn.Module.__init__(self)
        self.module, self.device_ids, self.output_device, self.dim = module, [0, 1], 0, 0
        self.src_device_obj = torch.device("cpu")

    def scatter(self, inputs: Any, kwargs: Any, device_ids: Any) -> Any:
        parts = [(part,) for part in inputs[0].chunk(2)]
        return parts, [{} for _ in parts]

    def replicate(self, module: Any, device_ids: Any) -> Any:
        replicas = [module._replicate_for_data_parallel() for _ in device_ids]
        for replica in replicas:
            replica.weight = module.weight * 1
        return replicas

    def parallel_apply(self, replicas: Any, inputs: Any, kwargs: Any) -> Any:
        results: dict[int, Any] = {}

        def call(number: int) -> None:
            results[number] = replicas[number](*inputs[number])

        threads = [threading.Thread(target=call, args=(number,)) for number in range(2)]
        for one in threads:
            one.start()
            one.join()
        return [results[0], results[1]]

    def gather(self, outputs: Any, output_device: Any) -> Any:
        return torch.cat(outputs)


@pytest.fixture
def watching(tmp_path: Path) -> Iterator[Any]:
    made: list[Session] = []

    def make(**order: Any) -> Session:
        made.append(Session(torch, Order(folder=str(tmp_path), **order)))
        made[-1].arm()
        return made[-1]

    yield make
    for one in made:
        one.finish()
        one.disarm()
        assert not one.failed


def train(model: nn.Module, x: Any, steps: int = 3) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for _ in range(steps):
        model(x).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("levers", [(), (SOME_LEVER,)])
def test_replicas_are_called_themselves(watching: Any, levers: Any) -> None:
    session = watching(levers=levers)
    inner = Noting()
    model = DataParallel(inner)
    train(model, torch.ones(4, 2))
    with torch.no_grad():
        inner(torch.ones(4, 2))
    assert inner.replicas == [True] * 6 + [False]
    assert session.roots() == [model]
    assert all("_compiled_call_impl" not in part.__dict__ for part in inner.modules())
    if levers:
        assert session.facts["levers"] == {SOME_LEVER["id"]: {"dropped": REPLICATED}}


def test_a_wrapper_without_replicas_is_gone_into(watching: Any) -> None:
    watching()
    inner = Noting()
    model = DataParallel(inner)
    model.device_ids = []
    train(model, torch.ones(4, 2))
    assert "_compiled_call_impl" in inner.__dict__


def test_a_first_argument_of_another_library_is_no_batch(watching: Any) -> None:
    session = watching()

    class Model(Noting):
        def forward(self, x: Any, y: Any = None) -> Any:
            return super().forward(torch.as_tensor(x, dtype=torch.float32))

    model = Model()
    model(np.ones((4, 2))).sum().backward()
    model(np.ones((4, 2)), torch.ones(3)).sum().backward()
    shapes = [event[6] for event in session.log.drain() if event[0] == "forward"]
    assert shapes == [None, (3,)]


def test_a_pass_that_starts_from_several_losses_has_no_single_one(watching: Any) -> None:
    session = watching()
    weight = torch.ones(2, requires_grad=True)
    torch.autograd.backward([weight.sum(), (2 * weight).sum()])
    (3 * weight.sum()).backward()
    assert [event[3] for event in session.log.drain() if event[0] == "backward"] == [None, 6.0]


def test_many_calls_without_gradients_are_logged_as_sums(
    watching: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation_calls, "_ONE_BY_ONE", 10)
    session = watching()
    model = Noting()
    train(model, torch.ones(4, 2), steps=2)
    session.log.drain()
    with torch.no_grad():
        for _ in range(1000):
            model(torch.ones(4, 2))
    model(torch.ones(4, 2)).sum().backward()
    events = session.log.drain()
    calls = [event for event in events if event[0] == "forward"]
    assert len(calls) < 20
    replay = Replay()
    assert not replay.take([*events, ("step", events[-1][2], 3, {})])[0]["evaluations"] < 1000
    last = calls[-2]
    assert last[1] >= calls[9][2]
    assert last[2] <= calls[-1][1]
