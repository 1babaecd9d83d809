"""How far back the graph behind a tensor reaches."""

import time

import pytest

torch = pytest.importorskip("torch")

from flatout.inside.retaining.graphs import reaches_back  # noqa: E402


class Twice(torch.autograd.Function):
    """One of the user's own."""

    @staticmethod
    def forward(_ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(_ctx: object, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient * 2


def now() -> int:
    return int(torch.autograd._get_sequence_nr())


def test_what_is_carried_along_reaches_back_and_what_is_made_anew_does_not() -> None:
    weight = torch.ones(3, requires_grad=True)
    state = torch.zeros(3)
    carried, marks = state, []
    for _ in range(3):
        marks.append(now())
        for _ in range(4):
            out = Twice.apply((weight * 2).tanh() + carried)
            out.sum().backward(retain_graph=True)
            carried = out
        state = (weight * 3).sum()
    later = time.monotonic() + 60
    assert reaches_back(carried, marks[0], marks[1], later)
    assert reaches_back(carried, marks[1], marks[2], later)
    assert not reaches_back(state, marks[1], marks[2], later)
    assert not reaches_back(carried.detach(), marks[1], marks[2], later)
    # Computed between the two, and only kept since.
    assert not reaches_back(carried, marks[1], now(), later)


def test_it_stops_where_the_time_is_up() -> None:
    weight = torch.ones(1, requires_grad=True)
    out = weight * 1
    begin, end = 0, now()
    for _ in range(100):
        out = out + weight
    assert reaches_back(out, begin, end, time.monotonic() + 60)
    assert not reaches_back(out, begin, end, time.monotonic() - 1)
