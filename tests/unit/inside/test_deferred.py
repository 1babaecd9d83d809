"""Numbers on a device are read later and never waited for; those in host memory are read at once."""

import pytest
import torch

from flatout.inside.deferred import Deferred, Slot
from tests.fakes.cuda import FakeCuda, FakeNumber

RING = 2048


@pytest.fixture
def cuda() -> FakeCuda:
    return FakeCuda()


@pytest.fixture
def deferred(cuda: FakeCuda) -> Deferred:
    return Deferred(cuda.torch)


@pytest.mark.parametrize("number", [0, 3, 2.5, float("inf")])
def test_a_plain_number_is_itself(deferred: Deferred, number: float) -> None:
    assert deferred.value_of(number) == number


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_tensor_in_host_memory_is_read_at_once(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.full(shape, 3, dtype=dtype)
    assert Deferred(torch).value_of(tensor) == 3


def test_a_tensor_that_requires_gradients_is_read_without_a_trace() -> None:
    weight = torch.tensor(2.0, requires_grad=True)
    loss = weight * 3
    assert Deferred(torch).value_of(loss) == 6
    loss.backward()
    assert weight.grad == 3


@pytest.mark.parametrize("size", [0, 2])
def test_what_is_not_one_number_is_none(size: int) -> None:
    assert Deferred(torch).value_of(torch.ones(size)) is None


def test_a_number_on_a_gpu_becomes_a_slot_that_holds_it_later(deferred: Deferred) -> None:
    loss = deferred.value_of(FakeNumber(1.5))
    shaped = deferred.value_of(FakeNumber(2.5, dim=1))
    assert isinstance(loss, Slot)
    assert (loss.read(), shaped.read()) == (1.5, 2.5)


def test_each_dtype_has_memory_of_its_own(deferred: Deferred) -> None:
    slots = [deferred.value_of(FakeNumber(value)) for value in (1.5, 1 << 53, 2.5, (1 << 62) + 1)]
    assert [slot.read() for slot in slots] == [1.5, 1 << 53, 2.5, (1 << 62) + 1]


def test_nothing_is_copied_while_a_graph_is_being_captured(cuda: FakeCuda, deferred: Deferred) -> None:
    with cuda.capture():
        assert deferred.value_of(FakeNumber(1.5)) is None


def test_a_device_of_another_kind_is_left_alone(deferred: Deferred) -> None:
    assert deferred.value_of(FakeNumber(1.5, kind="xpu")) is None


def test_a_slot_that_was_used_again_is_unknown_and_not_another_number(deferred: Deferred) -> None:
    first = deferred.value_of(FakeNumber(1.5))
    others = [deferred.value_of(FakeNumber(float(place))) for place in range(RING - 1)]
    assert first.read() == 1.5
    last = deferred.value_of(FakeNumber(7.5))
    assert first.read() is None
    assert (others[0].read(), others[-1].read(), last.read()) == (0.0, float(RING - 2), 7.5)
