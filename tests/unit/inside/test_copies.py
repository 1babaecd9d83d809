"""Copies of the training loop are counted with their bytes; those of models and other threads are not."""

import inspect
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flatout.inside.copies import CopiesTap
from flatout.inside.session import Session
from flatout.records.session import Order

METHODS = ("to", "cuda", "copy_")


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(torch, Order(folder=str(tmp_path)))


@pytest.fixture(autouse=True)
def tap(session: Session) -> Iterator[CopiesTap]:
    found = {name: torch.Tensor.__dict__.get(name) for name in METHODS}
    tap = CopiesTap(session)
    tap.install()
    yield tap
    tap.remove()
    # Tensor inherits them: nothing of its own may stay behind.
    assert {name: torch.Tensor.__dict__.get(name) for name in METHODS} == found


def logged(session: Session) -> list[int]:
    """Bytes of the copies that were seen."""
    events = session.log.drain()
    assert all(event[0] == "copy" and event[1] <= event[2] for event in events)
    assert all(event[4] == threading.get_ident() for event in events)
    return [event[3] for event in events]


def test_a_change_of_type_on_the_cpu_is_a_copy_with_the_bytes_of_its_source(session: Session) -> None:
    x = torch.ones(100)
    y = x.to(torch.float64)
    assert logged(session) == [400]
    assert y.dtype == torch.float64


def test_a_copy_in_place_counts_what_is_read(session: Session) -> None:
    target = torch.zeros(100, dtype=torch.float64)
    result = target.copy_(torch.ones(100))
    assert result is target
    assert target.sum() == 100
    assert logged(session) == [400]


def test_the_source_may_be_named(session: Session) -> None:
    target = torch.zeros(100)
    target.copy_(other=torch.ones(100), non_blocking=True)
    assert target.sum() == 100
    assert logged(session) == [400]


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.to(torch.float32),
        lambda x: x.to("cpu"),
        lambda x: x.to(torch.device("cpu"), non_blocking=True),
        lambda x: x.to(x),
        lambda x: x.T.to(torch.float32),
    ],
)
def test_a_call_that_copies_nothing_is_no_copy(session: Session, call: Any) -> None:
    call(torch.ones(10, 10))
    assert logged(session) == []


def test_counters_and_scalars_are_no_copies(session: Session) -> None:
    torch.ones(8).to(torch.float64)  # 32 bytes
    torch.tensor(1.0).to(torch.float64)
    assert logged(session) == []
    torch.ones(16).to(torch.float64)  # 64 bytes
    assert logged(session) == [64]


def test_what_happens_inside_a_model_a_loader_or_the_optimizer_is_theirs(session: Session) -> None:
    session.busy = 1
    torch.ones(100).to(torch.float64)
    assert logged(session) == []
    session.busy = 0
    torch.ones(100).to(torch.float64)
    assert logged(session) == [400]


def test_a_step_that_nobody_looks_at_has_no_copies(session: Session) -> None:
    session.watching = False
    torch.ones(100).to(torch.float64)
    assert logged(session) == []


def test_another_thread_is_not_the_loop(session: Session) -> None:
    session.thread = threading.get_ident()
    other = threading.Thread(target=lambda: torch.ones(100).to(torch.float64))
    other.start()
    other.join()
    assert session.log.drain() == []
    torch.ones(100).to(torch.float64)
    assert logged(session) == [400]


def test_errors_come_through_as_they_are_and_nothing_is_logged(session: Session) -> None:
    with pytest.raises(RuntimeError, match="size of tensor"):
        torch.zeros(3).copy_(torch.ones(100))
    with pytest.raises(RuntimeError, match=r"device|nowhere"):
        torch.ones(100).to("nowhere")
    with pytest.raises(TypeError):
        torch.zeros(3).copy_()
    assert logged(session) == []
    assert session.failed == {}


def test_gradients_flow_through_a_watched_copy() -> None:
    x = torch.ones(100, requires_grad=True)
    x.to(torch.float64).sum().backward()
    assert torch.equal(x.grad, torch.ones(100))  # type: ignore[arg-type]


def test_a_subclass_of_tensor_keeps_its_type() -> None:
    parameter = torch.nn.Parameter(torch.ones(100))
    assert type(parameter.data.to(torch.float64)) is torch.Tensor

    class Mine(torch.Tensor):
        pass

    assert type(torch.ones(100).as_subclass(Mine).to(torch.float64)) is Mine


KEPT_BEFORE = {torch.Tensor.to}


def test_a_kind_of_tensor_that_keeps_methods_knows_them_again(session: Session, tap: CopiesTap) -> None:
    kept_while = {torch.Tensor.to}
    known: list[tuple[bool, ...]] = []

    class Mine(torch.Tensor):
        """As torchvision's: what is done to one by these methods is one again."""

        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            with torch._C.DisableTorchFunctionSubclass():
                result = func(*args, **(kwargs or {}))
            if getattr(func, "__name__", "") == "to":
                known.append((func in KEPT_BEFORE, func in kept_while, func is torch.Tensor.to))
            return result

    mine = torch.ones(100).as_subclass(Mine)
    mine.to(torch.float64)
    assert logged(session) == [400]  # once, though torch calls it again from inside
    tap.remove()  # as in a loader's worker
    mine.to(torch.float64)
    assert known == [(True, True, True)] * 2


@pytest.mark.full
def test_the_compiler_sees_the_methods_alone() -> None:
    class Mine(torch.Tensor):
        pass

    def of_a_tensor(x: Any) -> Any:
        return torch.Tensor.to(x.to(torch.float64), torch.float32) * 2

    def of_any(x: Any) -> Any:
        return x.to(torch.float64) * 2

    of_a_tensor, of_any = (
        torch.compile(one, fullgraph=True, backend="eager") for one in (of_a_tensor, of_any)
    )
    assert of_a_tensor(torch.ones(3)).tolist() == [2.0] * 3
    assert type(of_any(torch.ones(3).as_subclass(Mine))) is Mine


def test_the_methods_look_as_before() -> None:
    assert torch.Tensor.to.__name__ == "to"
    assert torch.Tensor.copy_.__doc__ == torch._C.TensorBase.copy_.__doc__
    assert inspect.isroutine(torch.Tensor.to)


class OnDevice:
    """As much of a tensor as the tap looks at."""

    def __init__(self, kind: str, size: int = 4096) -> None:
        self.device = SimpleNamespace(type=kind, index=0)
        self.nbytes = size

    def data_ptr(self) -> int:
        return id(self)


def note(tap: CopiesTap, source: Any, result: Any, *, in_place: bool = False) -> None:
    tap._note(1, 2, source, result, in_place)


def test_on_a_gpu_only_what_crosses_is_a_copy(session: Session, tap: CopiesTap) -> None:
    session.on_gpu = True
    host, gpu = OnDevice("cpu"), OnDevice("cuda")
    note(tap, host, gpu)
    note(tap, gpu, host)
    assert [event[3] for event in session.log.drain()] == [4096, 4096]
    same = OnDevice("cuda")
    same.device = gpu.device
    note(tap, gpu, same)  # a change of type on the device
    other_host = OnDevice("cpu")
    other_host.device = host.device
    note(tap, host, other_host)  # a change of type in host memory, beside a GPU
    assert session.log.drain() == []


def test_two_gpus_are_two_places(session: Session, tap: CopiesTap) -> None:
    session.on_gpu = True
    first, second = OnDevice("cuda"), OnDevice("cuda")
    second.device.index = 1
    note(tap, first, second)
    assert len(session.log.drain()) == 1


def test_a_source_that_is_no_tensor_is_left_alone(session: Session, tap: CopiesTap) -> None:
    note(tap, 3.0, torch.zeros(100), in_place=True)
    assert session.log.drain() == []
