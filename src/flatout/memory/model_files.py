"""What is in a model's files, by their headers alone: no tensor is read, no pickle is unpickled.

A file of any size is answered from a few kilobytes: the JSON at the head of a safetensors file, or the
directory and data.pkl of the zip archive that torch.save writes. Whatever is wrong with a file is a
CallerMistake that says where.
"""

import io
import json
import re
import stat
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from flatout.memory.pieces import ModelFile, Piece, fault, unreadable
from flatout.memory.torch_files import LEGACY_MAGIC, ZIP_START, read_archive, read_legacy
from flatout.records.safetensors import DTYPES, LONGEST_HEADER

_LONGEST_INDEX = 100_000_000
_LFS_START = b"version https://git-lfs"
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.\w+)")
_INDEX = ".index.json"
_TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")


def read_model_files(paths: Sequence[Path]) -> list[ModelFile]:
    """Read files, folders of them and indexes of shards; raises CallerMistake."""
    found: dict[Path, None] = {}
    expected_names: dict[Path, set[str]] = {}
    for path in paths:
        _expand(path, found, expected_names)
    files = [read_model_file(path) for path in found]
    for file in files:
        missing = expected_names.get(file.path, set()) - {".".join(piece.path) for piece in file.pieces}
        # A pickle's tensors share pieces, so that not every one has a name.
        if missing and file.format == "safetensors":
            raise fault(
                file.path,
                f"the index says that tensor {min(missing)!r} is in it, which it is not",
                expected="shards that belong to their index",
            )
    return files


def read_model_file(path: Path) -> ModelFile:
    """Read one file; raises CallerMistake."""
    size = _size_of(path)
    try:
        with path.open("rb") as stream:
            start = stream.read(64)
            if not start:
                raise fault(path, "it is empty", expected="a model")
            if start.startswith(_LFS_START):
                raise fault(
                    path,
                    "it is a pointer of Git LFS, not the file itself",
                    expected="the file that it points to",
                    remedy="git lfs pull",
                )
            if path.suffix == ".safetensors" or start[8:9] == b"{":
                return _read_safetensors(path, stream, size)
            if start.startswith(ZIP_START):
                return read_archive(path, size)
            if start[:1] == b"\x80" and LEGACY_MAGIC in start:
                return read_legacy(path, stream, size)
    except OSError as error:
        raise unreadable(path, error) from error
    raise fault(
        path,
        f"it begins with {start[:8]!r}",
        expected="a safetensors file, or one that torch.save wrote",
        remedy="give the file with the weights: .safetensors, .pt, .pth or .bin",
    )


# Which files.


def _size_of(path: Path) -> int:
    """The size of a plain file: whatever else there is (a pipe, a device) is not opened."""
    try:
        found = path.stat()
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    if not stat.S_ISREG(found.st_mode):
        raise fault(
            path,
            "it is a folder" if stat.S_ISDIR(found.st_mode) else "it is not a plain file",
            expected="a file with a model in it",
            remedy="give the file with the weights: .safetensors, .pt, .pth or .bin",
        )
    return found.st_size


def _kind_is(path: Path, kind: Callable[[int], bool]) -> bool:
    try:
        return kind(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def _expand(path: Path, found: dict[Path, None], expected_names: dict[Path, set[str]]) -> None:
    if _kind_is(path, stat.S_ISDIR):
        _expand_folder(path, found, expected_names)
    elif path.name.endswith(_INDEX):
        for name, tensors in _read_index(path).items():
            shard = path.parent / name
            if not _kind_is(shard, stat.S_ISREG):
                raise fault(
                    path,
                    f"the shard {name!r} that it names is not there",
                    expected=f"{shard}",
                    remedy="download the missing shard, or all of them again",
                )
            found[shard] = None
            expected_names[shard] = tensors
    else:
        found[path] = None


def _expand_folder(folder: Path, found: dict[Path, None], expected_names: dict[Path, set[str]]) -> None:
    try:
        inside = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise unreadable(folder, error) from error
    for suffixes in ((".safetensors",), _TORCH_SUFFIXES):
        indexes = [entry for entry in inside if entry.name.endswith(tuple(f"{s}{_INDEX}" for s in suffixes))]
        if indexes:
            for index in indexes:
                _expand(index, found, expected_names)
            return
        files = [entry for entry in inside if entry.suffix in suffixes]
        if files:
            _require_all_shards(folder, files)
            found.update(dict.fromkeys(files))
            return
    raise fault(
        folder,
        "no model is in this folder",
        expected="a folder with .safetensors, .pt, .pth or .bin files",
        remedy="give the folder or the file with the weights",
    )


def _require_all_shards(folder: Path, files: Sequence[Path]) -> None:
    """Shards say how many they are, even without an index."""
    names = {file.name for file in files}
    for name in sorted(names):
        parts = _SHARD.fullmatch(name)
        if parts is None:
            continue
        start, _, count, suffix = parts.groups()
        # Never more than were found, whatever a name claims; the first that is missing is enough.
        for number in range(1, min(int(count), len(names) + 1) + 1):
            shard = f"{start}-{number:05}-of-{count}{suffix}"
            if shard not in names:
                raise fault(
                    folder,
                    f"the shard {shard!r} is not there",
                    expected=f"{int(count)} shards",
                    remedy="download the missing shard, or all of them again",
                )


def _read_index(path: Path) -> dict[str, set[str]]:
    """Shards that an index names, each with its tensors."""
    if _size_of(path) > _LONGEST_INDEX:
        raise fault(path, "it is too long for an index", expected=f"at most {_LONGEST_INDEX} bytes")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error
    plain = _json(path, data, "index")
    places = plain.get("weight_map")
    if not isinstance(places, dict) or not places:
        raise fault(path, "it has no weight_map", expected="an index of shards, with weight_map")
    shards: dict[str, set[str]] = {}
    for tensor, name in places.items():
        if not isinstance(name, str) or not name or Path(name).name != name or "\0" in name or name == "..":
            raise fault(
                path, f"tensor {tensor!r} is said to be in {name!r}", expected="files beside the index"
            )
        shards.setdefault(name, set()).add(tensor)
    return shards


# Safetensors.


def _read_safetensors(path: Path, stream: io.BufferedReader, size: int) -> ModelFile:
    stream.seek(0)
    start = stream.read(8)
    if len(start) < 8:
        raise fault(path, f"it ends after {size} bytes", expected="the length of a header in the first 8")
    (length,) = struct.unpack("<Q", start)
    if length > LONGEST_HEADER:
        raise fault(
            path,
            f"its header would be {length} bytes long",
            expected=f"a header of at most {LONGEST_HEADER} bytes",
        )
    if 8 + length > size:
        raise fault(
            path, f"its header should end at byte {8 + length}", expected=f"a header within its {size} bytes"
        )
    header = _json(path, stream.read(length), "header")
    pieces = _pieces_of_header(path, header, size - 8 - length)
    return ModelFile(path=path, format="safetensors", file_bytes=size, pieces=pieces)


def _pieces_of_header(path: Path, header: dict[str, Any], data_bytes: int) -> tuple[Piece, ...]:
    notes = header.pop("__metadata__", {})
    if not isinstance(notes, dict) or not all(isinstance(text, str) for text in notes.values()):
        raise fault(path, "its __metadata__ is no table of texts", expected="texts under __metadata__")
    extents = []
    pieces = []
    for name, described in header.items():
        piece, begin, end = _described(path, name, described)
        if end > data_bytes:
            raise fault(
                path,
                f"tensor {name!r} ends at byte {end} of its data, which has {data_bytes}",
                expected="tensors within the file, which may have been cut off",
            )
        extents.append((begin, end, name))
        pieces.append(piece)
    reached = 0
    for begin, end, name in sorted(extents):
        if begin != reached:
            how = "overlaps the one before it" if begin < reached else "follows a gap"
            raise fault(path, f"tensor {name!r} {how}", expected="tensors one right after the other")
        reached = end
    if reached != data_bytes:
        raise fault(
            path, f"{data_bytes - reached} bytes after its last tensor", expected="nothing but tensors"
        )
    return tuple(pieces)


def _described(path: Path, name: str, described: object) -> tuple[Piece, int, int]:
    """A tensor by its entry in the header, and where it begins and ends."""
    if not isinstance(described, dict):
        raise fault(path, f"tensor {name!r} is not described", expected="dtype, shape and data_offsets")
    kind, shape, offsets = (described.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(kind, str) or kind not in DTYPES:
        raise fault(
            path,
            f"tensor {name!r} is of an unknown dtype {kind!r}",
            expected=f"one of {', '.join(DTYPES)}",
            remedy="pip install --upgrade flatout, where this dtype is a new one",
        )
    if not _are_sizes(shape):
        raise fault(path, f"tensor {name!r} has the shape {shape!r}", expected="a list of sizes")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise fault(
            path,
            f"tensor {name!r} has the offsets {offsets!r}",
            expected="where it begins, and where it ends",
        )
    dtype, bits = DTYPES[kind]
    elements = 1
    for length in shape:
        elements *= length
    begin, end = offsets
    if elements * bits != (end - begin) * 8:
        raise fault(
            path,
            f"tensor {name!r} is stored in {end - begin} bytes",
            expected=f"{-(-elements * bits // 8)} bytes, for {kind} of the shape {shape}",
        )
    piece = Piece(
        path=(name,),
        tensor_count=1,
        dtype=dtype,
        element_count=elements,
        stored_bytes=end - begin,
        used_bytes=end - begin,
    )
    return piece, begin, end


def _are_sizes(value: object) -> TypeGuard[list[int]]:
    return (
        isinstance(value, list)
        and len(value) <= 64
        and all(type(item) is int and 0 <= item < 1 << 63 for item in value)
    )


def _json(path: Path, data: bytes, what: str) -> dict[str, Any]:
    """A JSON object in which no key is there twice: readers would differ on which one counts."""
    try:
        plain = json.loads(data.decode("utf-8"), object_pairs_hook=_once)
    except RecursionError as error:
        raise fault(path, f"its {what} is nested too deeply", expected="JSON") from error
    except ValueError as error:
        raise fault(path, f"its {what} is not JSON ({str(error)[:200]})", expected="JSON") from error
    if not isinstance(plain, dict):
        raise fault(path, f"its {what} is no JSON object", expected="an object, from { to }")
    return plain


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key, value in pairs:
        if key in table:
            raise ValueError(f"the key {key[:100]!r} is there twice")
        table[key] = value
    return table
