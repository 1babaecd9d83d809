"""Reads of the script's own lines, and of nobody else."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from flatout.runtime.protect.journal import Journal, Lines, Replay  # noqa: E402
from flatout.runtime.protect.reads import Reads  # noqa: E402

HERE = Path(__file__).name


@pytest.fixture
def reads(tmp_path: Path) -> Iterator[Reads]:
    found = Reads(torch)
    found.install()
    found.journal = Journal(tmp_path / "journal.jsonl")
    journal = found.journal
    yield found
    found.stop()
    journal.close()


def noted(reads: Reads, tmp_path: Path) -> list[Any]:
    assert reads.journal is not None
    reads.journal.updated(1)
    return Lines(tmp_path / "journal.jsonl").reads.get(1, [])


def test_every_way_to_look_into_a_tensor_is_noted(reads: Reads, tmp_path: Path) -> None:
    tensor = torch.tensor([2.0])
    seen = [
        tensor.item(),
        float(tensor),
        int(tensor),
        bool(tensor > 1),
        tensor.tolist(),
        [0, 1, 2][torch.tensor(1)],
    ]
    array = tensor.numpy()
    values = [value for _, value in noted(reads, tmp_path)]
    assert seen == [2.0, 2.0, 2, True, [2.0], 1]
    assert array[0] == 2.0
    assert values == [2.0, 2.0, 2, True, {"list": [2.0]}, 1, {"array": ["<f4", [1], [2.0]]}]


def test_torchs_own_reads_and_those_inside_of_a_model_are_not(reads: Reads, tmp_path: Path) -> None:
    class Looks(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x if x.sum().item() > 0 else -x

    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    torch.nn.utils.clip_grad_norm_([parameter], 1.0, error_if_nonfinite=True)
    Looks()(torch.ones(2))
    assert noted(reads, tmp_path) == []


def test_replayed_reads_are_what_they_were_whatever_the_tensor_holds(reads: Reads) -> None:
    def loop(tensor: Any) -> list[Any]:
        return [tensor.item(), tensor.tolist(), tensor.numpy().tolist(), bool(tensor)]

    first = loop(torch.tensor(3.5))
    assert reads.journal is not None
    reads.replay = Replay({1: reads.journal.updated(1)})
    assert loop(torch.tensor(0.0)) == first
    assert reads.replay.strange == 0


def test_everything_is_put_back() -> None:
    before = {name: vars(torch.Tensor).get(name) for name in ("item", "__bool__", "numpy")}
    found = Reads(torch)
    found.install()
    assert torch.Tensor.item is not before["item"]
    found.stop()
    assert {name: vars(torch.Tensor).get(name) for name in before} == before


def test_compiled_code_reads_as_it_did(reads: Reads) -> None:
    @torch.compile(backend="eager")
    def double(x: Any) -> Any:
        return x * (2 if x.sum().item() > 0 else 3)

    assert double(torch.ones(2)).tolist() == [2.0, 2.0]
    assert double(-torch.ones(2)).tolist() == [-3.0, -3.0]


def test_long_reads_are_packed_and_come_back_as_they_were(reads: Reads, tmp_path: Path) -> None:
    numbers = torch.arange(3000)

    def loop(tensor: Any) -> tuple[Any, Any, Any]:
        return tensor.numpy().copy(), tensor.tolist(), torch.complex(tensor.float(), tensor.float()).numpy()

    first = loop(numbers)
    assert reads.journal is not None
    reads.replay = Replay({1: reads.journal.updated(1)})
    again = loop(torch.zeros(3000, dtype=torch.int64))
    assert (again[0] == first[0]).all()
    assert again[0].dtype == first[0].dtype
    assert again[0].flags.writeable
    assert again[1] == first[1]
    assert (again[2] == first[2]).all()
    assert reads.replay.strange == 0


def test_what_is_too_long_to_be_noted_is_told_on_the_way_back(
    reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flatout.runtime.protect.reads._LARGEST_BYTES", 5000)
    torch.zeros(3000).numpy()
    assert reads.journal is not None
    reads.replay = Replay({1: reads.journal.updated(1)})
    assert torch.ones(3000).numpy().sum() == 3000
    assert reads.replay.strange == 1
    assert reads.replay.strange_place.startswith(HERE)
