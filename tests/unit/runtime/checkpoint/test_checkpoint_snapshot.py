"""How tensors come into shared memory: by pieces, each pinned by itself."""

import contextlib
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

    launched = []
    monkeypatch.setattr(torch.cuda, "cudart", lambda: SimpleNamespace(cudaHostRegister=refuse))
    monkeypatch.setattr(torch, "ones", lambda *_, device: launched.append(device))
    layout = lay_out({("model", "wide"): torch.randn(3, 2000)})
    copier._make_room(layout, pin=True)
    copier._make_room(layout, pin=True)
    assert len(asked) == 1
    # A kernel that takes the error, which would else reach training's next one.
    assert launched == ["cuda"]


GIB = 1 << 30


def a_gpu(monkeypatch: pytest.MonkeyPatch, *, free: int, reserved: int, allocated: int, peak: int) -> None:
    """Of 80 GiB, as it is between two steps."""
    cuda = torch.cuda
    monkeypatch.setattr(cuda, "mem_get_info", lambda _device: (free, 80 * GIB))
    monkeypatch.setattr(cuda, "memory_reserved", lambda _device: reserved)
    monkeypatch.setattr(cuda, "memory_allocated", lambda _device: allocated)
    monkeypatch.setattr(cuda, "max_memory_allocated", lambda _device: peak)
    monkeypatch.setattr(cuda, "device", lambda _device: contextlib.nullcontext())
    monkeypatch.setattr(cuda, "current_stream", lambda _device: None)
    monkeypatch.setattr(cuda, "Event", lambda: SimpleNamespace(record=lambda _stream: None))


def kept_there(copier: Any) -> bool:
    """Whether tensors are copied on their device, as if they were 8 GiB; else they are on the host by now."""
    tensors = {("model", "wide"): torch.randn(3, 2000)}
    layout = lay_out(tensors)
    there = copier._copies_there
    copier._copies_there = lambda device, some, _size: there(device, some, 8 * GIB)
    [(ref, (copy, _))] = copier._kept_on_their_device(tensors, layout).items()
    if copy is None:
        assert torch.equal(copier._view(layout, ref, tensors[ref]), tensors[ref])
    return copy is not None


@pytest.mark.parametrize(("peak", "there"), [(60, True), (75, False)])
def test_the_next_steps_activations_are_no_room_for_a_copy(
    copier: Any, monkeypatch: pytest.MonkeyPatch, peak: int, there: bool
) -> None:
    a_gpu(monkeypatch, free=2 * GIB, reserved=76 * GIB, allocated=20 * GIB, peak=peak * GIB)
    assert kept_there(copier) is there


def test_a_gpu_that_runs_out_of_memory_after_all_is_copied_from_at_once(
    copier: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_size: int, **_where: object) -> None:
        raise torch.cuda.OutOfMemoryError

    a_gpu(monkeypatch, free=50 * GIB, reserved=20 * GIB, allocated=20 * GIB, peak=20 * GIB)
    monkeypatch.setattr(torch, "empty", full)
    assert not kept_there(copier)
