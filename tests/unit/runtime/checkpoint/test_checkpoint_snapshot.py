"""How tensors come into shared memory: by pieces, each pinned by itself."""

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from flatout.runtime.checkpoint import snapshot  # noqa: E402
from flatout.runtime.checkpoint.layout import lay_out  # noqa: E402
from flatout.runtime.checkpoint.snapshot import Copier  # noqa: E402
from flatout.runtime.checkpoint.writing import SharedMemory  # noqa: E402

PIECE = 4096


@pytest.fixture
def copier(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(snapshot, "_PIECE", PIECE)
    memory = SharedMemory()
    made = Copier(torch, memory)
    yield made
    made.close()
    memory.close()


def test_tensors_that_reach_over_several_pieces_arrive_whole(copier: Any) -> None:
    tensors = {
        ("model", "wide"): torch.randn(3, 2000),
        ("model", "turned"): torch.randn(40, 50).t(),
        ("model", "pictures"): torch.randn(8, 3, 16, 16).to(memory_format=torch.channels_last),
        ("model", "half"): torch.randn(2047).to(torch.bfloat16),
        ("model", "step"): torch.tensor(7.0),
        ("model", "none"): torch.empty(0, 4),
    }
    layout = lay_out(tensors)
    assert layout.size > 5 * PIECE
    copier._make_room(layout, pin=False)
    for ref, tensor in tensors.items():
        copier._send(layout, ref, tensor)
    for ref, tensor in tensors.items():
        assert torch.equal(copier._view(layout, ref, tensor), tensor), ref


def test_every_piece_is_pinned_once_and_let_go(copier: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: dict[int, int] = {}

    def pin(pointer: int, size: int, _flags: int) -> int:
        assert pointer not in pinned
        pinned[pointer] = size
        return 0

    driver = SimpleNamespace(cudaHostRegister=pin, cudaHostUnregister=pinned.pop)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: driver)
    layout = lay_out({("model", "wide"): torch.randn(3, 2000)})
    copier._make_room(layout, pin=True)
    copier._make_room(layout, pin=True)
    assert sum(pinned.values()) == layout.size
    assert max(pinned.values()) == PIECE
    assert len(pinned) == -(-layout.size // PIECE)
    copier.close()
    assert not pinned


def test_what_cannot_be_pinned_is_tried_once(copier: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refuse(*words: int) -> int:
        asked.append(words)
        return 2

    monkeypatch.setattr(torch.cuda, "cudart", lambda: SimpleNamespace(cudaHostRegister=refuse))
    layout = lay_out({("model", "wide"): torch.randn(3, 2000)})
    copier._make_room(layout, pin=True)
    copier._make_room(layout, pin=True)
    assert len(asked) == 1
