"""Where tensors lie in one piece of memory that can be written to disk as safetensors files, as it is."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from flatout.records.safetensors import DTYPES, LONGEST_HEADER

# The format's name of a dtype, by torch's. Of those with less than a byte, torch packs several into one.
_NAMES = {ours: theirs for theirs, (ours, bits) in DTYPES.items() if bits % 8 == 0}
_ALIGN = 64
_LENGTH_BYTES = 8


class BadFile(Exception):
    """A file that is no safetensors file, in words."""


@dataclasses.dataclass(frozen=True)
class Place:
    """A tensor's bytes in the whole."""

    start: int
    size: int


@dataclasses.dataclass(frozen=True)
class File:
    """A file's bytes in the whole: its header, which is known before any tensor is copied, and then those."""

    name: str
    start: int
    size: int
    header: bytes


@dataclasses.dataclass(frozen=True)
class Layout:
    """All files and all tensors, one after the other."""

    size: int
    files: tuple[File, ...]
    places: Mapping[tuple[str, str], Place]


def lay_out(tensors: Mapping[tuple[str, str], Any]) -> Layout:
    """A place for each of these tensors (by file and name); raises ValueError for a dtype without a name."""
    places: dict[tuple[str, str], Place] = {}
    files: list[File] = []
    start = 0
    for file in dict.fromkeys(file for file, _ in tensors):
        # Wide ones first: then all are aligned without gaps, which the format does not allow.
        of_file = sorted(
            ((ref, one) for ref, one in tensors.items() if ref[0] == file), key=lambda pair: -_width(pair[1])
        )
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        offset = 0
        for ref, tensor in of_file:
            size = tensor.numel() * _width(tensor)
            dtype = str(tensor.dtype).removeprefix("torch.")
            if dtype not in _NAMES:
                raise ValueError(f"{'.'.join(ref)}: tensors of {dtype} cannot be stored")
            header[ref[1]] = {
                "dtype": _NAMES[dtype],
                "shape": list(tensor.shape),
                "data_offsets": [offset, offset + size],
            }
            places[ref] = Place(offset, size)
            offset += size
        text = json.dumps(header).encode()
        text += b" " * (-(len(text) + _LENGTH_BYTES) % _ALIGN)
        lead = len(text).to_bytes(_LENGTH_BYTES, "little") + text
        for ref, _ in of_file:
            places[ref] = dataclasses.replace(places[ref], start=start + len(lead) + places[ref].start)
        files.append(File(f"{file}.safetensors", start, len(lead) + offset, lead))
        start += len(lead) + offset
        start += -start % _ALIGN
    return Layout(start, tuple(files), places)


def _width(tensor: Any) -> int:
    return int(tensor.element_size())


@dataclasses.dataclass(frozen=True)
class Stored:
    """A tensor in a file: torch's name of its dtype, with its bits, its shape, and where its bytes are."""

    dtype: str
    bits: int
    shape: tuple[int, ...]
    start: int
    end: int


def read_header(data: memoryview) -> dict[str, Stored]:
    """What a safetensors file says of its tensors; raises BadFile for anything that cannot be true."""
    if len(data) < _LENGTH_BYTES:
        raise BadFile("it is too short to be a safetensors file")
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    if length > min(LONGEST_HEADER, len(data) - _LENGTH_BYTES):
        raise BadFile("its header is longer than it could be")
    begin = _LENGTH_BYTES + length
    try:
        header = json.loads(bytes(data[_LENGTH_BYTES:begin]))
        found = {name: _stored(one, begin) for name, one in header.items() if name != "__metadata__"}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadFile("its header cannot be read") from error
    for name, one in found.items():
        count = 1
        for side in one.shape:
            count *= side
        if not begin <= one.start <= one.end <= len(data) or 8 * (one.end - one.start) != count * one.bits:
            raise BadFile(f"tensor {name!r} does not lie where its header says")
    return found


def _stored(said: dict[str, Any], begin: int) -> Stored:
    first, last = said["data_offsets"]
    shape = tuple(said["shape"])
    if not all(type(side) is int and side >= 0 for side in (*shape, first, last)):
        raise ValueError("no sizes")
    dtype, bits = DTYPES[said["dtype"]]
    if dtype not in _NAMES:
        raise ValueError("a dtype that is never stored")
    return Stored(dtype, bits, shape, begin + first, begin + last)
