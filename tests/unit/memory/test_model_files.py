"""What is in model files, by their headers: as written, damaged in every way, and hostile."""

import argparse
import collections
import contextlib
import enum
import io
import json
import os
import pickle
import random
import re
import struct
import sys
import time
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flatout.memory.model_files import read_model_file, read_model_files
from flatout.memory.pickled import Holder, Malformed, find_tensors, read_pickle
from flatout.memory.pickled_names import is_hostile
from flatout.memory.pieces import ModelFile
from flatout.records.errors import CallerMistake

SETTINGS = settings(
    deadline=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def safetensors(header: object, data_bytes: int = 0, *, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + bytes(data_bytes)


def entry(dtype: str, shape: list[Any], begin: Any, end: Any) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def saved(value: object, **settings: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream, **settings)
    return stream.getvalue()


def archive(members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return stream.getvalue()


def written(folder: Path, content: bytes, name: str = "model.pt") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def by_name(file: ModelFile) -> dict[str, tuple[str | None, int]]:
    return {".".join(piece.path): (piece.dtype, piece.stored_bytes) for piece in file.pieces}


def refusal(path: Path) -> str:
    with pytest.raises(CallerMistake) as caught:
        read_model_file(path)
    assert caught.value.exit_code == 2
    assert str(path) in caught.value.received
    assert caught.value.expected
    assert caught.value.remedy
    return caught.value.received


# Safetensors.

GOOD = {
    "a": entry("F32", [2, 3], 0, 24),
    "b.w": entry("BF16", [4], 24, 32),
    "z": entry("I64", [0, 7], 32, 32),
}


def test_a_header_by_hand(tmp_path: Path) -> None:
    content = safetensors({"__metadata__": {"format": "pt"}, **GOOD}, 32)
    file = read_model_file(written(tmp_path, content, "m.safetensors"))
    assert file.format == "safetensors"
    assert file.file_bytes == len(content)
    assert by_name(file) == {"a": ("float32", 24), "b.w": ("bfloat16", 8), "z": ("int64", 0)}
    assert [piece.element_count for piece in file.pieces] == [6, 4, 0]


def test_what_safetensors_itself_writes(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.torch")
    state = {"w": torch.zeros(3, 4, dtype=torch.float16), "f8": torch.zeros(5, dtype=torch.float8_e4m3fn)}
    library.save_file(state, tmp_path / "m.safetensors")
    read = read_model_file(tmp_path / "m.safetensors")
    assert by_name(read) == {"w": ("float16", 24), "f8": ("float8_e4m3fn", 5)}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"\x01\x00", "ends after 2 bytes"),
        (safetensors({}, length=50), "should end at byte 58"),
        (safetensors({}, length=(1 << 64) - 1), "bytes long"),
        (safetensors({}, length=100_000_001), "100000001 bytes long"),
        (safetensors(b"{nonsense"), "not JSON"),
        (safetensors(b"\xff\xfe{}"), "not JSON"),
        (safetensors(b"[]"), "no JSON object"),
        (safetensors(b"[" * 200_000), "nested too deeply"),
        (safetensors(b'{"a": 1' + b"0" * 10_000 + b"}"), "not JSON"),
        (safetensors(b'{"a": {}, "a": {}}'), "'a' is there twice"),
        (safetensors({"a": 3}), "'a' is not described"),
        (safetensors({"a": entry("F99", [1], 0, 4)}, 4), "unknown dtype 'F99'"),
        (safetensors({"a": entry("F32", [-1], 0, 4)}, 4), "shape [-1]"),
        (safetensors({"a": entry("F32", [True], 0, 4)}, 4), "shape [True]"),
        (safetensors({"a": entry("F32", [1.0], 0, 4)}, 4), "shape [1.0]"),
        (safetensors({"a": entry("F32", [1], -4, 0)}, 4), "offsets [-4, 0]"),
        (safetensors({"a": entry("F32", [1], 4, 0)}, 4), "offsets [4, 0]"),
        (safetensors({"a": entry("F32", [1], 0, None)}, 4), "offsets [0, None]"),
        (safetensors({"a": entry("F32", [2], 0, 4)}, 4), "stored in 4 bytes"),
        (safetensors({"a": entry("F32", [1 << 62, 1 << 62], 0, 4)}, 4), "stored in 4 bytes"),
        (safetensors({"a": entry("F32", [2], 0, 8)}, 4), "ends at byte 8 of its data, which has 4"),
        (safetensors({"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 4, 12)}, 12), "overlaps"),
        (safetensors({"a": entry("F32", [1], 4, 8)}, 8), "gap"),
        (safetensors({"a": entry("F32", [1], 0, 4)}, 8), "4 bytes after its last tensor"),
        (safetensors({"__metadata__": {"a": 1}}), "__metadata__"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS"),
    ],
)
def test_what_is_wrong_with_a_safetensors_file(tmp_path: Path, content: bytes, said: str) -> None:
    assert said in refusal(written(tmp_path, content, "m.safetensors"))


def test_a_name_as_long_as_it_likes_makes_no_long_error(tmp_path: Path) -> None:
    content = safetensors({"x" * 100_000: entry("F32", [1], 4, 8)}, 8)
    assert len(refusal(written(tmp_path, content, "m.safetensors"))) < 2000


def test_what_is_no_file(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "absent.safetensors")
    assert "folder" in refusal(tmp_path)
    os.mkfifo(tmp_path / "pipe.pt")
    assert "not a plain file" in refusal(tmp_path / "pipe.pt")
    with pytest.raises(CallerMistake):
        read_model_file(Path("a\0b"))
    with pytest.raises(CallerMistake, match="begins with"):
        read_model_file(written(tmp_path, b"GGUF and so on", "model.gguf"))


def test_ten_gigabytes_are_answered_at_once(tmp_path: Path) -> None:
    each = 10_000_000
    header = {f"l.{i}": entry("U8", [each], i * each, (i + 1) * each) for i in range(1000)}
    path = written(tmp_path, safetensors(header), "m.safetensors")
    os.truncate(path, path.stat().st_size + 1000 * each)
    began = time.thread_time()  # others on this machine have no part in it
    assert read_model_file(path).stored_bytes == 10_000_000_000
    assert time.thread_time() - began < 1


# Shards.


def shards(folder: Path, count: int = 3) -> Path:
    places = {}
    for number in range(1, count + 1):
        name = f"model-{number:05}-of-{count:05}.safetensors"
        header = {f"l{number}.w": entry("F32", [number], 0, 4 * number)}
        written(folder, safetensors(header, 4 * number), name)
        places[f"l{number}.w"] = name
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 24}, "weight_map": places}))
    return index


def test_shards_by_their_index_and_by_their_folder(tmp_path: Path) -> None:
    index = shards(tmp_path)
    for given_path in (index, tmp_path):
        files = read_model_files([given_path, given_path])
        assert [file.stored_bytes for file in files] == [4, 8, 12]
    index.unlink()
    assert len(read_model_files([tmp_path])) == 3


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    index = shards(tmp_path)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CallerMistake, match="model-00002-of-00003"):
        read_model_files([tmp_path])
    index.unlink()
    with pytest.raises(CallerMistake, match="model-00002-of-00003"):
        read_model_files([tmp_path])


def test_a_tensor_that_is_not_in_its_shard_is_named(tmp_path: Path) -> None:
    index = shards(tmp_path)
    plain = json.loads(index.read_text())
    plain["weight_map"]["lost.w"] = "model-00001-of-00003.safetensors"
    index.write_text(json.dumps(plain))
    with pytest.raises(CallerMistake, match=re.escape("'lost.w'")):
        read_model_files([index])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"weight_map": {}}',
        b'{"weight_map": {"a": 3}}',
        b'{"weight_map": {"a": "../secret.safetensors"}}',
        b'{"weight_map": {"a": "/etc/passwd"}}',
        b'{"weight_map": {"a": ".."}}',
        b'{"weight_map": {"a": "x\\u0000y"}}',
    ],
)
def test_an_index_that_is_none(tmp_path: Path, content: bytes) -> None:
    index = written(tmp_path, content, "model.safetensors.index.json")
    with pytest.raises(CallerMistake):
        read_model_files([index])


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(CallerMistake, match="no model is in this folder"):
        read_model_files([tmp_path])


# What torch.save writes.


def test_a_state_dict(tmp_path: Path) -> None:
    state = {
        "w": torch.zeros(2, 3),
        "p": torch.nn.Parameter(torch.zeros(4, dtype=torch.bfloat16)),
        "u16": torch.zeros(5, dtype=torch.uint16),
        "f8": torch.zeros(6, dtype=torch.float8_e5m2),
        "c": torch.zeros(2, dtype=torch.complex64),
        "empty": torch.zeros(0),
        "flag": torch.tensor(True),
    }
    file = read_model_file(written(tmp_path, saved(state)))
    assert file.format == "torch"
    assert file.unfamiliar == ()
    assert file.notes == ()
    assert by_name(file) == {
        "w": ("float32", 24),
        "p": ("bfloat16", 8),
        "u16": ("uint16", 10),
        "f8": ("float8_e5m2", 6),
        "c": ("complex64", 16),
        "empty": ("float32", 0),
        "flag": ("bool", 1),
    }


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_any_protocol_of_pickle(tmp_path: Path, protocol: int) -> None:
    state = collections.OrderedDict(w=torch.zeros(2, 3), names={"a", "b"}, deep=[{"v": torch.zeros(1)}])
    file = read_model_file(written(tmp_path, saved(state, pickle_protocol=protocol)))
    assert by_name(file) == {"w": ("float32", 24), "deep.0.v": ("float32", 4)}
    assert bool(file.notes) == (protocol >= 4)


def test_tied_tensors_count_once_and_views_with_all_they_view(tmp_path: Path) -> None:
    tied, large = torch.zeros(10), torch.zeros(1000)
    state = {"a": tied, "b": tied, "c": tied.view(2, 5), "v": large[:3], "x": torch.zeros(1).expand(1 << 40)}
    first, view, expanded = read_model_file(written(tmp_path, saved(state))).pieces
    assert (first.stored_bytes, first.used_bytes, first.tensor_count) == (40, 40, 2)
    assert (view.stored_bytes, view.used_bytes, view.element_count) == (4000, 12, 3)
    assert (expanded.stored_bytes, expanded.used_bytes) == (4, 4)


class Colour(enum.Enum):
    RED = 1


def test_harmless_strangers_are_noted(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    value = {
        "w": torch.zeros(3),
        "args": argparse.Namespace(lr=0.1, held=torch.zeros(2)),
        "scalar": numpy.float64(1.0),
        "colour": Colour.RED,
    }
    file = read_model_file(written(tmp_path, saved(value)))
    assert by_name(file) == {"w": ("float32", 12), "args.held": ("float32", 8)}
    assert "argparse.Namespace" in file.unfamiliar
    assert any("weights_only=True" in note and "argparse.Namespace" in note for note in file.notes)
    with pytest.raises(pickle.UnpicklingError):
        torch.load(tmp_path / "model.pt", weights_only=True)


def test_a_whole_model_and_a_tensor_of_a_class_of_its_own(tmp_path: Path) -> None:
    class_of_its_own = torch.nn.Parameter(torch.zeros(3))
    class_of_its_own.note = "kept"  # type: ignore[attr-defined]
    model = torch.nn.Linear(2, 3)
    file = read_model_file(written(tmp_path, saved({"m": model, "p": class_of_its_own})))
    assert sorted(piece.stored_bytes for piece in file.pieces) == [12, 12, 24]
    assert "torch.nn.modules.linear.Linear" in file.unfamiliar


def test_sparse_and_quantized_tensors(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        content = saved(
            {
                "s": torch.eye(4).to_sparse(),
                "q": torch.quantize_per_tensor(torch.ones(6), 0.1, 0, torch.qint8),
            }
        )
    file = read_model_file(written(tmp_path, content))
    assert sorted((piece.dtype, piece.stored_bytes) for piece in file.pieces) == [
        ("float32", 16),
        ("int64", 64),
        ("qint8", 6),
    ]


def test_torchscript(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(torch.nn.Linear(2, 3)).save(str(tmp_path / "m.pt"))
    file = read_model_file(tmp_path / "m.pt")
    assert file.format == "torchscript"
    assert file.stored_bytes == 36
    assert any("torch.jit.load" in note for note in file.notes)


def test_a_legacy_file(tmp_path: Path) -> None:
    state = {"w": torch.zeros(100, 3), "v": torch.zeros(7, dtype=torch.float16)}
    content = saved(state, _use_new_zipfile_serialization=False)
    file = read_model_file(written(tmp_path, content))
    assert file.format == "legacy"
    assert file.file_bytes == len(content)
    assert by_name(file) == {"w": ("float32", 1200), "v": ("float16", 14)}
    assert any("before 1.6" in note for note in file.notes)
    with pytest.raises(CallerMistake, match="cut off"):
        read_model_file(written(tmp_path, content[:900]))


def test_gigabytes_that_torch_saved_are_answered_at_once(tmp_path: Path) -> None:
    with torch.serialization.skip_data():
        torch.save(
            {f"l.{i}": torch.empty(10 << 20, dtype=torch.uint8) for i in range(200)}, tmp_path / "m.pt"
        )
    began = time.thread_time()  # others on this machine have no part in it
    assert read_model_file(tmp_path / "m.pt").stored_bytes == 2000 << 20
    assert time.thread_time() - began < 1


def test_without_checksums(tmp_path: Path) -> None:
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        path = written(tmp_path, saved({"w": torch.zeros(3)}))
    finally:
        torch.serialization.set_crc32_options(before)
    assert read_model_file(path).stored_bytes == 12


# Archives that are none of torch's, or no longer.


def unpacked(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        return {name: file.read(name) for name in file.namelist()}


MEMBERS = unpacked(saved({"w": torch.zeros(64)}))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda: archive({"a/b.txt": b"x"}), "without data.pkl"),
        (lambda: archive({**MEMBERS, "archive/../../evil": b"x"}), "leads elsewhere"),
        (lambda: archive({**MEMBERS, "/evil": b"x"}), "leads elsewhere"),
        (lambda: archive({**MEMBERS, "archive\\..\\evil": b"x"}), "leads elsewhere"),
        (lambda: archive({**MEMBERS, "archive/DATA.PKL": b"x"}), "is there twice"),
        (lambda: archive(MEMBERS, zipfile.ZIP_DEFLATED), "is compressed"),
        (
            lambda: archive({**MEMBERS, "archive/data/1": bytes(50 << 20)}, zipfile.ZIP_DEFLATED),
            "is compressed",
        ),
        (lambda: archive({k: v for k, v in MEMBERS.items() if k != "archive/data/0"}), "data/0 is missing"),
        (lambda: archive({**MEMBERS, "archive/data/0": bytes(255)}), "data/0 is 255 bytes long"),
        (lambda: archive({**MEMBERS, "archive/data.pkl": b"\x80\x02}"}), "cannot be followed"),
        (lambda: archive(MEMBERS)[:-40], "cannot be read"),
        (lambda: archive(MEMBERS)[: len(archive(MEMBERS)) // 2], "cannot be read"),
        (lambda: b"PK\x03\x04", "cannot be read"),
    ],
)
def test_archives_that_are_refused(tmp_path: Path, change: Callable[[], bytes], said: str) -> None:
    assert said in refusal(written(tmp_path, change()))


def test_a_bomb_of_members_over_one_another(tmp_path: Path) -> None:
    content = bytearray(archive({**MEMBERS, "archive/data/1": bytes(256)}))
    # Let the second storage point at the first.
    start = content.rindex(b"PK\x01\x02", 0, content.rindex(b"archive/data/1"))
    first = content.rindex(b"PK\x01\x02", 0, content.rindex(b"archive/data/0"))
    content[start + 42 : start + 46] = content[first + 42 : first + 46]
    assert "over another" in refusal(written(tmp_path, bytes(content)))


def test_a_directory_as_large_as_it_likes(tmp_path: Path) -> None:
    path = written(tmp_path, archive(MEMBERS))
    end = path.read_bytes()[-22:]
    os.truncate(path, 3 << 30)
    with path.open("ab") as stream:
        stream.write(end[:12] + struct.pack("<II", 2 << 30, 1 << 30) + end[20:])
    assert "directory" in refusal(path)


def test_a_pickle_that_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, archive({**MEMBERS, "archive/data.pkl": bytes(65 << 20)}))
    assert "data.pkl" in refusal(path)
    monkeypatch.setattr("flatout.memory.torch_files.read_pickle", lambda stream: read_pickle(stream, most=8))
    file = read_model_file(written(tmp_path, archive(MEMBERS)))
    assert [(piece.dtype, piece.stored_bytes) for piece in file.pieces] == [(None, 256)]
    assert any("too long to follow" in note for note in file.notes)


# Pickles that would run something.


class MakesFolder:
    """Unpickled, it makes a folder: what an attack does, without the harm."""

    def __init__(self, marker: Path) -> None:
        self.marker = str(marker)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.marker,)


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("protocol", [2, 4])
def test_a_hostile_pickle_is_refused_and_nothing_runs(tmp_path: Path, *, legacy: bool, protocol: int) -> None:
    marker = tmp_path / "ran"
    value = {"w": torch.zeros(3), "evil": MakesFolder(marker)}
    content = saved(value, pickle_protocol=protocol, _use_new_zipfile_serialization=not legacy)
    path = written(tmp_path, content)
    said = refusal(path)
    assert "refused" in said
    assert "mkdir" in said
    assert not marker.exists()
    # It is live: whoever unpickles it runs it.
    torch.load(path, weights_only=False)
    assert marker.exists()


HEAD = b"\x80\x02"


@pytest.mark.parametrize(
    ("pickled", "name"),
    [
        (b"cos\nsystem\nX\x02\x00\x00\x00id\x85R.", "os.system"),
        (b"c__builtin__\neval\nX\x01\x00\x00\x001\x85R.", "builtins.eval"),
        (b"X\x02\x00\x00\x00osX\x06\x00\x00\x00system\x93X\x02\x00\x00\x00id\x85R.", "os.system"),
        (b"(X\x02\x00\x00\x00idios\nsystem\n.", "os.system"),
        (b"(cos\nsystem\nX\x02\x00\x00\x00ido.", "os.system"),
        (b"csubprocess\nPopen\nX\x02\x00\x00\x00id\x85\x81.", "subprocess.Popen"),
        (b"ctorch.serialization\nos.system\nX\x02\x00\x00\x00id\x85R.", "torch.serialization.os.system"),
        (b"ctorch.storage\n_load_from_bytes\nC\x00\x85R.", "_load_from_bytes"),
        # From a call to a call.
        (b"cfunctools\npartial\n)R)R.", "a call of what functools.partial gave"),
        (b"cbuiltins\ngetattr\n}X\x01\x00\x00\x00a\x86R.", "builtins.getattr"),
        (b"cbuiltins\ngetattr\nctorch\nhub\nX\x01\x00\x00\x00a\x86R.", "torch.hub"),
        (b"ctorch.nn\nModule\n}b.", "a change to torch.nn.Module"),
        # It breaks after the call, which has been made by then.
        (b"cos\nsystem\nX\x02\x00\x00\x00id\x85RRRR.", "os.system"),
        (b"cos\nsystem\nX\x02\x00\x00\x00id\x85R\xff", "os.system"),
        # Named, not called: the import alone runs code.
        (b"cos\nsystem\n0}.", "os.system"),
    ],
)
def test_attacks_by_hand(tmp_path: Path, pickled: bytes, name: str) -> None:
    said = refusal(written(tmp_path, archive({**MEMBERS, "archive/data.pkl": HEAD + pickled})))
    assert "refused" in said
    assert name in said


def test_what_is_named_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "never_imported.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    pickled = HEAD + b"cnever_imported\nThing\n)R."
    file = read_model_file(written(tmp_path, archive({**MEMBERS, "archive/data.pkl": pickled})))
    assert file.unfamiliar == ("never_imported.Thing",)
    assert "never_imported" not in sys.modules


@pytest.mark.parametrize(
    ("name", "hostile"),
    [
        ("os.system", True),
        ("posix.system", True),
        ("builtins.exec", True),
        ("builtins.print", True),
        ("builtins.set", False),
        ("builtins.ValueError", False),
        ("types.CodeType", True),
        ("types.SimpleNamespace", False),
        ("mine.osmosis.Config", False),
        ("mine.os.Config", True),
        ("pathlib.PosixPath", False),
        ("numpy.core.multiarray.scalar", False),
        ("torch.load", True),
        ("torch.loader.Thing", False),
    ],
)
def test_names(name: str, *, hostile: bool) -> None:
    assert is_hostile(name) == hostile


def test_a_value_that_holds_itself_and_one_that_doubles() -> None:
    itself = read_pickle(io.BytesIO(b"\x80\x02]q\x00h\x00a."))
    assert isinstance(itself.value, Holder)
    assert list(find_tensors(itself.value)) == []
    doubling: list[object] = []
    for _ in range(200):
        doubling = [doubling, doubling]
    assert list(find_tensors(read_pickle(io.BytesIO(pickle.dumps(doubling, 2))).value)) == []
    deep = b"\x80\x02" + b")" + b"\x85" * 300_000 + b"."
    assert list(find_tensors(read_pickle(io.BytesIO(deep)).value)) == []


# Whatever the bytes.

mutations = st.lists(
    st.tuples(st.integers(0, 1 << 20), st.integers(0, 4), st.binary(max_size=6)), min_size=1, max_size=4
)


def mutated(content: bytes, changes: list[tuple[int, int, bytes]]) -> bytes:
    for place, taken, put in changes:
        at = place % (len(content) + 1)
        content = content[:at] + put + content[at + taken :]
    return content


def only_the_typed_error(path: Path) -> None:
    try:
        file = read_model_file(path)
    except CallerMistake:
        return
    assert all(0 <= piece.used_bytes <= piece.stored_bytes for piece in file.pieces)
    assert file.stored_bytes <= file.file_bytes


SAFE = safetensors({"__metadata__": {"format": "pt"}, **GOOD}, 32)
CHECKPOINT = {
    "model": {
        "w": torch.zeros(2, 3),
        "p": torch.nn.Parameter(torch.zeros(2)),
        "u": torch.zeros(1, dtype=torch.uint16),
    },
    "optimizer": {
        "state": {0: {"exp_avg": torch.zeros(3)}},
        "param_groups": [{"lr": 0.1, "betas": (0.9, 1)}],
    },
    "args": argparse.Namespace(a=1),
}
TORCH = saved(CHECKPOINT)
LEGACY = saved(CHECKPOINT, _use_new_zipfile_serialization=False)
PARTS = unpacked(TORCH)


@SETTINGS
@given(changes=mutations)
def test_mutated_safetensors(tmp_path: Path, changes: list[tuple[int, int, bytes]]) -> None:
    only_the_typed_error(written(tmp_path, mutated(SAFE, changes), "m.safetensors"))


@SETTINGS
@given(st.data())
def test_mutated_headers(tmp_path: Path, data: st.DataObject) -> None:
    values = st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.lists(st.integers())
    )
    header = json.loads(json.dumps(GOOD))
    for name in data.draw(st.lists(st.sampled_from(sorted(GOOD)), min_size=1, max_size=3)):
        header[name][data.draw(st.sampled_from(["dtype", "shape", "data_offsets", "more"]))] = data.draw(
            values
        )
    only_the_typed_error(
        written(tmp_path, safetensors(header, data.draw(st.integers(0, 64))), "m.safetensors")
    )


@SETTINGS
@given(changes=mutations)
def test_mutated_archives(tmp_path: Path, changes: list[tuple[int, int, bytes]]) -> None:
    only_the_typed_error(written(tmp_path, mutated(TORCH, changes)))


@SETTINGS
@given(changes=mutations)
def test_mutated_directories(tmp_path: Path, changes: list[tuple[int, int, bytes]]) -> None:
    start = TORCH.index(b"PK\x01\x02")
    only_the_typed_error(written(tmp_path, TORCH[:start] + mutated(TORCH[start:], changes)))


@SETTINGS
@given(changes=mutations)
def test_mutated_pickles(tmp_path: Path, changes: list[tuple[int, int, bytes]]) -> None:
    members = {**PARTS, "archive/data.pkl": mutated(PARTS["archive/data.pkl"], changes)}
    only_the_typed_error(written(tmp_path, archive(members)))


@SETTINGS
@given(changes=mutations)
def test_mutated_legacy_files(tmp_path: Path, changes: list[tuple[int, int, bytes]]) -> None:
    only_the_typed_error(written(tmp_path, LEGACY[:15] + mutated(LEGACY[15:], changes)))


# Opcodes with something sensible to work on, in any order.
plain_opcodes = [
    bytes([code]) for code in b"}])(t\x85\x86\x87usae012NRbQ\x81\x92\x93odl\x8f\x90\x91\x94\x88J."
]
opcodes = st.sampled_from(
    [
        *plain_opcodes,
        *(b"K\x00", b"K\x02", b"L9L\n", b"\x8a\x01\xff", b"q\x00", b"h\x00", b"\x82\x01", b"P1\n"),
        *(b"X\x01\x00\x00\x000", b"X\x07\x00\x00\x00storage", b"X\x03\x00\x00\x00cpu"),
        *(b"ctorch\nFloatStorage\n", b"ctorch._utils\n_rebuild_tensor_v2\n", b"ccollections\nOrderedDict\n"),
        *(b"ctorch._tensor\n_rebuild_from_type_v2\n", b"ctorch._utils\n_rebuild_tensor_v3\n"),
        *(b"ctorch._utils\n_rebuild_parameter\n", b"cbuiltins\ngetattr\n", b"iargparse\nNamespace\n"),
    ]
)


@settings(deadline=None, max_examples=400)
@given(st.one_of(st.binary(max_size=60), st.lists(opcodes, max_size=25).map(b"".join)))
def test_any_pickle_at_all(content: bytes) -> None:
    for stream in (io.BytesIO(content + b"."), io.BytesIO(content)):
        with contextlib.suppress(Malformed):
            list(find_tensors(read_pickle(stream).value))


def test_many_mutants_of_a_pickle_quickly() -> None:
    """Hypothesis looks at few; a plain loop at many."""
    chance = random.Random(7)
    base = PARTS["archive/data.pkl"]
    for _ in range(4000):
        content = bytearray(base)
        for _ in range(chance.randint(1, 3)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        with contextlib.suppress(Malformed):
            list(find_tensors(read_pickle(io.BytesIO(bytes(content))).value))
