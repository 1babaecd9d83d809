"""An output in a graph's memory is handed out as it is, unless the script keeps what it was given."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from flatout.levers.graph_outputs import GraphOutputs  # noqa: E402
from flatout.levers.lever import Broken  # noqa: E402

# torch's own, as it loads the compiler.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")


TORCHS_OWN = ["nothing", "another tensor over the memory", "the object itself"]


class Model:
    """Writes every output to the same memory, as a graph does, of which torch may keep tensors of its own."""

    def __init__(self, elements: int, torchs_own: str = "nothing") -> None:
        self.memory = torch.zeros(elements)
        self.storage = self.memory.untyped_storage()
        self.calls = 0
        self.cached = [self.memory] if torchs_own == TORCHS_OWN[1] else []
        if torchs_own == TORCHS_OWN[2]:
            self.cached.append(self.again())

    def again(self) -> Any:
        return torch.empty(0).set_(self.storage)

    def replayed(self) -> Any:
        self.calls += 1
        self.memory.fill_(self.calls)
        return self.cached[0] if self.cached and self.cached[0] is not self.memory else self.again()


@pytest.mark.parametrize("torchs_own", TORCHS_OWN)
@pytest.mark.parametrize("deletes", [False, True])
def test_a_loop_that_lets_go_gets_the_graphs_own_memory(torchs_own: str, deletes: bool) -> None:
    model = Model(1 << 20, torchs_own)
    call = GraphOutputs(torch, model.replayed)
    places = []
    for _ in range(8):
        out = call()
        loss = out.mean()
        places.append(out.data_ptr() == model.memory.data_ptr())
        assert loss.item() == model.calls
        if deletes:
            del out
    assert places == [False] * 4 + [True] * 4
    assert not call.copies_all


def test_a_loop_that_keeps_outputs_keeps_their_values() -> None:
    model = Model(1 << 20)
    call = GraphOutputs(torch, model.replayed)
    kept = [call() for _ in range(8)]
    assert call.copies_all
    assert [one[0].item() for one in kept] == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("torchs_own", TORCHS_OWN)
@pytest.mark.parametrize("keep", ["the output", "a view", "a view alone"])
def test_a_loop_that_keeps_one_later_keeps_its_value(torchs_own: str, keep: str) -> None:
    model = Model(1 << 20, torchs_own)
    call = GraphOutputs(torch, model.replayed)
    kept = []
    for step in range(1, 9):
        out = call()
        if step == 8:
            kept.append(out if keep == "the output" else out.detach())
    if keep == "a view alone":
        del out
    for _ in range(2):  # whoever asks again gets the same answer
        with pytest.raises(Broken, match="keeps an output"):
            call()
    assert kept[0][0].item() == 8


def test_small_outputs_are_always_copied() -> None:
    model = Model(1)
    call = GraphOutputs(torch, model.replayed)
    assert [one.item() for one in [call() for _ in range(3)]] == [1, 2, 3]
    assert not call.copies_all


def test_what_repeats_itself_is_copied_without_its_repetitions() -> None:
    base = torch.arange(6.0).view(2, 3, 1)
    call = GraphOutputs(torch, lambda: base.expand(2, 3, 1 << 20))
    out = call()
    assert torch.equal(out[..., :4], base.expand(2, 3, 4))
    assert out.untyped_storage().size() == base.untyped_storage().size()
    assert out.data_ptr() != base.data_ptr()
