"""Checksums tell two runs apart by any bit and any order, and leave no trace in the run."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from flatout.inside import pairing as module
from flatout.inside.copies import CopiesTap
from flatout.inside.pairing import Pairing, checksum, tensors_in
from flatout.inside.session import Session
from flatout.records.session import Order


def sum_of(tensor: Tensor) -> int:
    total = checksum(torch, tensor)
    assert total.dtype == torch.int64
    return int(total)


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """A session that watches nothing by itself."""
    return Session(torch, Order(folder=str(tmp_path), pair_updates=2))


@pytest.fixture
def pairing(session: Session) -> Pairing:
    assert session.pairing is not None
    return session.pairing


# Checksums --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.uint8,
        torch.bool,
        torch.complex64,
    ],
)
@pytest.mark.parametrize("shape", [(), (1,), (3,), (4, 5), (0,), (2, 0, 3)])
def test_every_kind_and_shape_has_a_checksum(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.ones(shape, dtype=dtype)
    assert sum_of(tensor) == sum_of(tensor.clone())


@settings(deadline=None, max_examples=60)
@given(values=st.lists(st.floats(width=32), min_size=2, max_size=40), data=st.data())
def test_one_changed_bit_changes_the_sum(values: list[float], data: st.DataObject) -> None:
    tensor = torch.tensor(values, dtype=torch.float32)
    place = data.draw(st.integers(0, len(values) - 1))
    bit = data.draw(st.integers(0, 30))
    other = tensor.clone()
    other.view(torch.int32)[place] ^= 1 << bit
    assert sum_of(tensor) != sum_of(other)


@settings(deadline=None, max_examples=60)
@given(values=st.lists(st.integers(0, 255), min_size=2, max_size=40), data=st.data())
def test_two_swapped_elements_change_the_sum(values: list[int], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(values) - 1))
    second = data.draw(st.integers(0, len(values) - 1))
    swapped = list(values)
    swapped[first], swapped[second] = values[second], values[first]
    for dtype in (torch.uint8, torch.int64):
        same = sum_of(torch.tensor(values, dtype=dtype)) == sum_of(torch.tensor(swapped, dtype=dtype))
        assert same == (values == swapped)


def test_a_tensor_of_several_pieces_is_summed_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK", 8)
    tensor = torch.arange(40, dtype=torch.int32)
    other = tensor.clone()
    other[3], other[35] = 35, 3
    assert sum_of(tensor) != sum_of(other)
    assert sum_of(tensor) == sum_of(tensor.clone())


def test_numbers_that_compare_equal_or_to_nothing_are_told_apart_by_their_bits() -> None:
    assert sum_of(torch.tensor([0.0, 1.0])) != sum_of(torch.tensor([-0.0, 1.0]))
    nan = torch.tensor([float("nan"), 1.0])
    assert sum_of(nan) == sum_of(nan.clone())


@settings(deadline=None, max_examples=30)
@given(offset=st.integers(0, 9), length=st.integers(0, 24))
def test_it_does_not_matter_where_in_memory_a_tensor_lies(offset: int, length: int) -> None:
    whole = torch.arange(64, dtype=torch.uint8)
    part = whole[offset : offset + length]
    assert sum_of(part) == sum_of(part.clone())


def test_views_count_as_what_they_show() -> None:
    tensor = torch.randn(6, 4)
    assert sum_of(tensor.T) == sum_of(tensor.T.contiguous())
    assert sum_of(tensor[::2]) == sum_of(tensor[::2].contiguous())
    wave = torch.randn(5, dtype=torch.complex64)
    assert sum_of(wave.conj()) == sum_of(wave.conj().resolve_conj().clone())
    assert sum_of(wave.conj().imag) == sum_of(wave.conj().imag.clone())


def test_what_has_no_plain_storage_has_none() -> None:
    assert checksum(torch, torch.eye(3).to_sparse()) is None
    assert checksum(torch, torch.empty(3, device="meta")) is None
    assert checksum(torch, nn.LazyLinear(3).weight) is None
    with pytest.warns(UserWarning, match="prototype|beta"):
        compressed = torch.eye(3).to_sparse_csr()
    assert checksum(torch, compressed) is None


def test_tensors_are_found_in_order_wherever_they_lie() -> None:
    a, b, c = torch.ones(1), torch.ones(2), torch.ones(3)
    assert [t.numel() for t in tensors_in(((a, {"x": [b, "text"], "y": None}), {"z": c}))] == [1, 2, 3]


# A run ------------------------------------------------------------------------------------------------------


def test_parameters_and_inputs_are_summed_and_random_state_is_as_it_was(pairing: Pairing) -> None:
    torch.manual_seed(3)
    model, x = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), torch.randn(4, 3)
    before = torch.get_rng_state()
    pairing.called(model, (x,), {})
    assert torch.equal(torch.get_rng_state(), before)
    assert all(parameter.grad is None for parameter in model.parameters())
    seen = pairing.describe()
    assert len(seen["parameters"]) == 1
    assert [update for update, _ in seen["inputs"]] == [0]


def test_equal_runs_have_equal_sums_and_others_do_not(tmp_path: Path) -> None:
    def run(seed: int, scale: float = 1.0) -> dict[str, object]:
        session = Session(torch, Order(folder=str(tmp_path), pair_updates=2))
        torch.manual_seed(seed)
        model = nn.Linear(3, 2)
        assert session.pairing is not None
        for _ in range(2):
            session.pairing.called(model, (torch.randn(4, 3) * scale,), {"mask": torch.ones(4)})
        return session.pairing.describe()

    assert run(1) == run(1)
    assert run(1)["parameters"] != run(2)["parameters"]
    assert run(1)["parameters"] == run(1, 2.0)["parameters"]
    assert run(1)["inputs"] != run(1, 2.0)["inputs"]


def test_only_the_first_updates_are_summed(session: Session, pairing: Pairing) -> None:
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    for updates in range(4):
        session.updates = updates
        pairing.called(model, (x,), {})
    assert [update for update, _ in pairing.describe()["inputs"]] == [0, 1]
    assert len(pairing.parameters) == 1


def test_a_root_that_first_appears_after_an_update_has_no_initial_parameters(
    session: Session, pairing: Pairing
) -> None:
    session.updates = 1
    pairing.called(nn.Linear(3, 2), (torch.randn(4, 3),), {})
    assert pairing.parameters == []
    assert len(pairing.inputs) == 1


def test_summing_is_not_taken_for_a_copy_of_the_loop(session: Session, pairing: Pairing) -> None:
    tap = CopiesTap(session)
    tap.install()
    try:
        pairing.called(nn.Linear(64, 64), (torch.randn(64, 64),), {})
        assert session.log.drain() == []
        torch.randn(64, 64).to(torch.float64)
        assert [event[0] for event in session.log.drain()] == ["copy"]
    finally:
        tap.remove()
    assert session.busy == 0


def test_nothing_is_summed_while_a_graph_is_being_captured(
    pairing: Pairing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "is_capturing", lambda _torch: True)
    pairing.called(nn.Linear(3, 2), (torch.randn(4, 3),), {})
    assert pairing.describe() == {"parameters": [], "inputs": []}


def test_a_call_without_tensors_has_no_sum(pairing: Pairing) -> None:
    pairing.called(nn.Identity(), ("text", 3), {})
    assert pairing.describe() == {"parameters": [None], "inputs": [[0, None]]}


# What models made ------------------------------------------------------------------------------------------


class Recurrent(nn.Module):
    """As a language model with a state that its script hands on."""

    def __init__(self, rounding: float) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.rounding = rounding

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        made = self.inner(x + state) * (1 + self.rounding)
        return made.sum(), made


def sums_of_a_run(folder: Path, rounding: float, data_seed: int = 1) -> list[Any]:
    session = Session(torch, Order(folder=str(folder), pair_updates=4))
    session.arm()
    try:
        torch.manual_seed(0)
        one = Recurrent(rounding)
        optimizer = torch.optim.SGD(one.parameters(), lr=0.0)
        torch.manual_seed(data_seed)
        state = torch.zeros(2, 3)
        for _ in range(4):
            loss, state = one(torch.randn(2, 3), state.detach())
            loss.backward()
            optimizer.step()
        assert session.pairing is not None
        return list(session.pairing.describe()["inputs"])
    finally:
        session.finish()
        session.disarm()


def test_a_state_that_comes_back_is_no_data(tmp_path: Path) -> None:
    alone = sums_of_a_run(tmp_path / "a", 0.0)
    assert len(alone) == 4
    assert sums_of_a_run(tmp_path / "b", 1e-3) == alone
    assert sums_of_a_run(tmp_path / "c", 0.0, data_seed=2) != alone


def test_what_one_model_makes_for_another_is_no_data(pairing: Pairing) -> None:
    data, made = torch.ones(3), nn.Linear(3, 3)(torch.ones(3))
    judge = nn.Linear(3, 1)
    pairing.called(judge, (data,), {})
    for one in (made, made.detach()):
        pairing.returned(made)
        pairing.called(judge, (data, one), {})
    sums = [total for _, total in pairing.describe()["inputs"]]
    assert sums[0] == sums[1] == sums[2]
