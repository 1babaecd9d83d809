"""A scaler's scale is read without waiting, and never while a graph is captured."""

from types import SimpleNamespace
from typing import Any

from flatout.inside.deferred import Deferred
from flatout.inside.loss_scale import LossScale
from tests.fakes.cuda import FakeCuda, FakeNumber


def session_on(cuda: FakeCuda) -> Any:
    return SimpleNamespace(
        torch=cuda.torch,
        device=cuda.device,
        on_gpu=True,
        gpu=SimpleNamespace(deferred=Deferred(cuda.torch)),
        facts={},
    )


def scaler(value: float, kind: str = "cuda") -> Any:
    return SimpleNamespace(_scale=FakeNumber(value, kind=kind))


def test_a_scale_is_told_once_the_device_has_come_to_it() -> None:
    cuda = FakeCuda()
    session = session_on(cuda)
    scale = LossScale(session)
    cuda.work(10.0)
    scale.look(scaler(1024.0))
    scale.look(scaler(512.0))  # the first is still on its way
    assert session.facts == {}
    cuda.catch_up()
    scale.look(scaler(512.0))
    assert session.facts == {"loss_scale": 1024.0}
    cuda.catch_up()
    scale.look(scaler(256.0))
    assert session.facts == {"loss_scale": 512.0}


def test_nothing_is_asked_while_a_graph_is_captured() -> None:
    cuda = FakeCuda()
    session = session_on(cuda)
    scale = LossScale(session)
    scale.look(scaler(1024.0))
    cuda.catch_up()
    with cuda.capture():
        scale.look(scaler(512.0))
    assert session.facts == {}


def test_a_scaler_that_has_not_scaled_yet_has_nothing_to_tell() -> None:
    session = session_on(FakeCuda())
    LossScale(session).look(SimpleNamespace(_scale=None))
    assert session.facts == {}
