"""CUDA graphs end where models are called again before the backward pass of their last call."""

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from flatout.levers.graph_outputs import GraphOutputs  # noqa: E402
from flatout.levers.lever import Broken  # noqa: E402
from flatout.levers.pending import Pending  # noqa: E402

# torch's own, as it loads the compiler.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
LARGE = (1024, 512)


@pytest.fixture(scope="module", autouse=True)
def _compiler() -> Iterator[None]:
    yield
    torch.compiler.reset()


class Graphs:
    """A model whose call writes over what the last one returned and kept for its backward pass."""

    def __init__(self, pending: Pending) -> None:
        self.weight = torch.nn.Parameter(torch.ones(1))
        out, kept = torch.empty(LARGE), torch.empty(LARGE)

        class Replay(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any, weight: Any) -> Any:
                kept.copy_(x)
                out.copy_(x * weight)
                return torch.empty(0).set_(out.untyped_storage(), 0, LARGE)

            @staticmethod
            def backward(ctx: Any, gradient: Any) -> Any:
                return None, (gradient * kept).sum().reshape(1)

        self.call = GraphOutputs(torch, lambda x: Replay.apply(x, self.weight), pending)

    def of(self, value: float) -> Any:
        return self.call(torch.full(LARGE, value))

    def step(self) -> None:
        self.weight.grad = None
        self.of(1.0).mean().backward()


def test_one_backward_pass_a_call_is_none() -> None:
    model = Graphs(Pending())
    for _ in range(8):
        model.step()


@pytest.mark.parametrize("steps", [0, 1, 8])
def test_a_second_call_before_the_backward_pass_is_refused(steps: int) -> None:
    model = Graphs(Pending())
    for _ in range(steps):
        model.step()
    model.weight.grad = None
    first = model.of(1.0)
    with pytest.raises(Broken, match="before the backward pass of the last call"):
        model.of(5.0)
    # What the first one left is as it was: the second is run as written.
    (first.mean() + (torch.full(LARGE, 5.0) * model.weight).mean()).backward()
    assert model.weight.grad.item() == pytest.approx(6.0)


def test_so_is_another_model_of_the_same_job() -> None:
    pending = Pending()
    one, other = Graphs(pending), Graphs(pending)
    for _ in range(3):
        one.step()
        other.step()
    held = one.of(1.0)
    with pytest.raises(Broken):
        other.of(1.0)
    del held


def test_a_call_whose_result_is_dropped_has_no_backward_pass() -> None:
    model = Graphs(Pending())
    for _ in range(3):
        model.of(2.0).mean().item()
        model.step()


def test_what_is_not_trained_has_none() -> None:
    model = Graphs(Pending())
    with torch.no_grad():
        held = [model.of(1.0) for _ in range(3)]
    assert len(held) == 3


def test_it_is_seen_through_what_the_compiler_makes() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    pending = Pending()
    compiled = torch.compile(lambda x: (x * weight).sin(), backend="aot_eager")
    for _ in range(3):
        result = compiled(torch.ones(3))
        pending.refuse()
        pending.called(result)
        result.sum().backward()
    held = compiled(torch.ones(3))
    pending.called(held)
    copy = held.clone()
    del held
    with pytest.raises(Broken):
        pending.refuse()
    del copy
    pending.refuse()


def test_outputs_that_are_not_used_are_no_backward_pass_to_come() -> None:
    """As where the model was captured in pieces, and returns more than the loss needs."""
    weight, pending = torch.nn.Parameter(torch.ones(3)), Pending()
    pieces = [torch.compile(lambda x, by=by: (x * weight * by).sin(), backend="aot_eager") for by in (1, 2)]
    unused = None
    for _ in range(3):
        pending.refuse()
        unused, used = (piece(torch.ones(3)) for piece in pieces)
        pending.called((unused, used))
        used.sum().backward()
    pending.called(unused)
    pending.forget()  # an update
    pending.refuse()


def test_what_is_let_go_is_held_no_more() -> None:
    model = Graphs(Pending())
    held = model.of(1.0)
    storage = held.untyped_storage()
    before = torch._C._storage_Use_Count(storage._cdata)
    model.call.release()
    assert not model.call._alive
    assert torch._C._storage_Use_Count(storage._cdata) <= before
