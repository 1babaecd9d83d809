"""Copies made together are the tensors as they were, each by itself."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from flatout.runtime.checkpoint import device_copies  # noqa: E402
from flatout.runtime.checkpoint.device_copies import copies_of  # noqa: E402


def some() -> list[Any]:
    return [
        torch.randn(3, 5),
        torch.randn(7),
        torch.tensor(3.0),
        torch.empty(0, 4),
        torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last),
        torch.randn(6, 4).t(),
        torch.zeros(1).expand(5),
        torch.randn(9).bfloat16(),
        torch.randint(0, 9, (2, 2)),
        torch.tensor([True, False, True]),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.randn(17)[1:],
    ]


@pytest.mark.parametrize("piece_bytes", [1, 64, 1 << 30])
def test_each_is_as_it_was_and_stays_so(piece_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_copies, "_PIECE_BYTES", piece_bytes)
    tensors = some()
    expected = [one.clone() for one in tensors]
    copies = copies_of(torch, tensors)
    for one in tensors:
        if one.numel() and 0 not in one.stride():
            one.zero_()
    for copy, was in zip(copies, expected, strict=True):
        assert (copy.dtype, copy.shape) == (was.dtype, was.shape)
        assert copy.is_contiguous(memory_format=torch.channels_last) or copy.stride() == was.stride()
        assert torch.equal(copy, was)


def test_no_copy_reaches_into_another() -> None:
    copies = copies_of(torch, some())
    for place, copy in enumerate(copies):
        before = [one.clone() for one in copies]
        if copy.numel() and 0 not in copy.stride():
            copy.zero_()
        assert all(
            torch.equal(one, was)
            for number, (one, was) in enumerate(zip(copies, before, strict=True))
            if number != place
        )


def test_memory_is_let_go_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_copies, "_PIECE_BYTES", 100)
    first, second, third = copies_of(torch, [torch.ones(20), torch.ones(5), torch.ones(5)])
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    assert third.untyped_storage().data_ptr() != first.untyped_storage().data_ptr()
