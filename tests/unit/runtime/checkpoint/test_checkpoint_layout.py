"""What is laid out can be read by anybody who reads safetensors, and nonsense is refused."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from flatout.runtime.checkpoint.layout import BadFile, lay_out, read_header

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool)


def written(tensors: dict[tuple[str, str], Any], folder: Path) -> None:
    layout = lay_out(tensors)
    memory = bytearray(layout.size)
    whole = torch.frombuffer(memory, dtype=torch.uint8) if memory else None
    for ref, tensor in tensors.items():
        place = layout.places[ref]
        assert whole is not None
        whole[place.start : place.start + place.size].view(tensor.dtype).view(tensor.shape).copy_(tensor)
    for file in layout.files:
        memory[file.start : file.start + len(file.header)] = file.header
        (folder / file.name).write_bytes(memory[file.start : file.start + file.size])


def test_others_read_what_we_write(tmp_path: Path) -> None:
    model = {("model", str(dtype)): (torch.rand(3, 5) * 9).to(dtype) for dtype in DTYPES}
    rest = {("optimizer", "step"): torch.tensor(7.0), ("optimizer", "none"): torch.zeros(0, 3)}
    written({**model, **rest}, tmp_path)
    found = load_file(tmp_path / "model.safetensors")
    assert {("model", name) for name in found} == set(model)
    assert all(torch.equal(found[name], one) for (_, name), one in model.items())
    assert load_file(tmp_path / "optimizer.safetensors")["step"].item() == 7.0


def test_we_read_what_others_write(tmp_path: Path) -> None:
    tensors = {"a.weight": torch.randn(4, 4, dtype=torch.bfloat16), "b": torch.arange(3)}
    save_file(tensors, tmp_path / "x.safetensors")
    data = (tmp_path / "x.safetensors").read_bytes()
    header = read_header(memoryview(data))
    assert {name: (one.dtype, one.shape) for name, one in header.items()} == {
        "a.weight": ("bfloat16", (4, 4)),
        "b": ("int64", (3,)),
    }
    place = header["b"]
    assert list(memoryview(data)[place.start : place.end].cast("q")) == [0, 1, 2]


def file_of(header: object, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 8,
        (1 << 62).to_bytes(8, "little") + b"{}",
        file_of([1, 2]),
        file_of({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 9]}}, bytes(9)),
        file_of({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, bytes(4)),
        file_of({"w": {"dtype": "F32", "shape": [-2, -1], "data_offsets": [0, 8]}}, bytes(8)),
        file_of({"w": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}}, bytes(8)),
        file_of({"w": {"dtype": "OBJ", "shape": [2], "data_offsets": [0, 8]}}, bytes(8)),
        file_of({"w": {"shape": [2]}}),
        (200_000).to_bytes(8, "little") + b"[" * 200_000,
    ],
)
def test_what_cannot_be_is_refused(data: bytes) -> None:
    with pytest.raises(BadFile):
        read_header(memoryview(data))


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(BadFile):
        assert all(one.end <= len(data) for one in read_header(memoryview(data)).values())


def test_a_dtype_that_the_format_lacks_is_named() -> None:
    with pytest.raises(ValueError, match=r"model\.w: .*complex128"):
        lay_out({("model", "w"): torch.zeros(2, dtype=torch.complex128)})
