"""What a package takes is checked before compiled code reads it; what is no package is said so."""

from pathlib import Path

import pytest
import torch

import flatout
from flatout.infer.exporting import exporting
from flatout.infer.exporting.loaded import check
from flatout.records.errors import CallerMistake, CorruptFile
from flatout.records.packages import ExportOrder, InputLook, PackageLook

LOOK = PackageLook(
    device="cpu",
    torch_version="2.13.0",
    inputs=(
        InputLook(path="0.0", dtype="float32", shape=(4, 8), batch=True),
        InputLook(path="1.mask", dtype="bool", shape=(4, 8), batch=True),
    ),
    fewest_samples=1,
    most_samples=64,
)


def given(
    samples: int = 4, width: int = 8, **other: torch.Tensor
) -> tuple[tuple[torch.Tensor], dict[str, torch.Tensor]]:
    mask = torch.ones(samples, width, dtype=torch.bool)
    return (other.get("x", torch.randn(samples, width)),), {"mask": other.get("mask", mask)}


@pytest.mark.parametrize("samples", [1, 4, 64])
def test_batches_of_any_size_pass(samples: int) -> None:
    check(LOOK, *given(samples))


@pytest.mark.parametrize(
    "wrong",
    [
        given(65),
        given(width=9),
        given(x=torch.randn(4, 8).double()),
        given(x=torch.randn(3, 8)),
        given(x=torch.randn(4, 8, device="meta")),
        given(x=torch.randn(32)),
    ],
)
def test_everything_else_is_refused(wrong: tuple[tuple[torch.Tensor], dict[str, torch.Tensor]]) -> None:
    with pytest.raises(CallerMistake, match=r"float32\[any, 8\]"):
        check(LOOK, *wrong)


def test_other_arguments_are_refused() -> None:
    args, kwargs = given()
    with pytest.raises(CallerMistake):
        check(LOOK, args, {})
    with pytest.raises(CallerMistake):
        check(LOOK, (*args, *args), kwargs)


def test_examples_are_exported_as_callers_inputs_will_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    monkeypatch.setattr(exporting, "found", lambda _name: lambda: (torch.nn.Conv2d(3, 4, 3), images))
    order = ExportOrder(factory="model:make", inputs="", device="", out="", fixed_batch=False)
    _, call = exporting._made(order)
    assert call.args[0].is_contiguous()


def test_what_is_no_package_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(CallerMistake, match="no file"):
        flatout.load_model(tmp_path / "none.pt2")
    (tmp_path / "text.pt2").write_text("hello")
    with pytest.raises(CorruptFile, match="no package"):
        flatout.load_model(tmp_path / "text.pt2")
