"""Outputs in files: shard after shard, each whole or not there, and an index that names the whole ones."""

import dataclasses
import io
import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from flatout.infer.whole_sets.identity import differing
from flatout.records.atomic import write_atomically
from flatout.records.codec import decode, encode
from flatout.records.errors import CallerMistake, CorruptFile
from flatout.records.safetensors import DTYPES
from flatout.records.whole_set import INDEX, KIND, VERSION, Made, Output, OutputIndex, Shard

_REMEDY = "choose another folder, or delete this one to begin anew"
_NAMES = {ours: theirs for theirs, (ours, bits) in DTYPES.items() if bits % 8 == 0}
_ALIGN = 64


class Shards:
    """The folder, seen by the one who writes it."""

    def __init__(self, folder: Path, made: Made) -> None:
        self._folder = folder
        found = read_index(folder)
        if found is not None:
            _insist(folder, found.made, made)
        self.index = found or OutputIndex(made=made, outputs={}, shards=(), is_complete=False)
        whole = self._whole(self.index.shards)
        complete = self.index.is_complete and whole == self.index.shards
        self.index = dataclasses.replace(self.index, shards=whole, is_complete=complete)
        self._sweep()

    def _whole(self, shards: tuple[Shard, ...]) -> tuple[Shard, ...]:
        """Up to the first that is not as the index says."""
        kept: list[Shard] = []
        for shard in shards:
            if any(_size(self._folder / name) != size for name, size in shard.sizes_bytes.items()):
                break
            kept.append(shard)
        return tuple(kept)

    def _sweep(self) -> None:
        """What a kill left behind: halves of files, and files that the index had not heard of."""
        known = {name for shard in self.index.shards for name in shard.files.values()}
        for path in self._folder.iterdir():
            if (path.name.startswith(".") and path.name.endswith(".tmp")) or (
                path.name.startswith("part-") and path.name not in known
            ):
                path.unlink(missing_ok=True)

    def add(self, tensors: dict[str, torch.Tensor], part_size: int | None) -> None:
        """Write a shard, and then that it is there."""
        first = self.index.samples
        outputs = {name: _kind(one) for name, one in tensors.items()}
        if self.index.shards and outputs != self.index.outputs:
            raise CallerMistake(
                f"outputs of samples from {first} on have other names, dtypes or shapes than those before",
                expected="the same outputs for each sample",
                remedy="pad them to one shape in the module, or give a function as out",
            )
        stem = f"part-{first:012d}"
        if self.index.made.format == "npy":
            files = {name: f"{stem}.{plain}.npy" for name, plain in _plain_names(tensors).items()}
            contents = {files[name]: _npy(name, one) for name, one in tensors.items()}
        else:
            files = dict.fromkeys(tensors, f"{stem}.safetensors")
            contents = {f"{stem}.safetensors": _safetensors(tensors)}
        for name, data in contents.items():
            write_atomically(self._folder / name, data)
        samples = next(iter(tensors.values())).shape[0]
        sizes = {name: len(data) for name, data in contents.items()}
        shard = Shard(first=first, samples=samples, files=files, sizes_bytes=sizes)
        self._write(outputs=outputs, shards=(*self.index.shards, shard), part_size=part_size)

    def complete(self) -> None:
        """Nothing is missing any more."""
        self._write(is_complete=True)

    def _write(self, **changes: Any) -> None:
        self.index = dataclasses.replace(self.index, **changes)
        write_atomically(self._folder / INDEX, encode(KIND, VERSION, self.index))


def read_index(folder: Path) -> OutputIndex | None:
    """The index of a folder; None where there is none."""
    path = folder / INDEX
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    return decode(data, path, KIND, VERSION, OutputIndex, remedy=_REMEDY)


def read_shard(folder: Path, shard: Shard, index: OutputIndex) -> dict[str, torch.Tensor]:
    """The tensors of one shard."""
    if index.made.format == "npy":
        import numpy as np

        return {
            name: torch.from_numpy(np.load(folder / file, allow_pickle=False))
            for name, file in shard.files.items()
        }
    path = folder / next(iter(shard.files.values()))
    data = bytearray(path.read_bytes())
    length = int.from_bytes(data[:8], "little")
    header = json.loads(bytes(data[8 : 8 + length]))
    found = {}
    for name, place in header.items():
        if name == "__metadata__":
            continue
        start, end = place["data_offsets"]
        dtype = getattr(torch, DTYPES[place["dtype"]][0])
        if end == start:
            found[name] = torch.empty(place["shape"], dtype=dtype, device="cpu")
            continue
        if len(data) < 8 + length + end:
            raise CorruptFile(path, "it is shorter than its header says", remedy=_REMEDY)
        piece = torch.frombuffer(data, dtype=torch.uint8, count=end - start, offset=8 + length + start)
        found[name] = piece.clone().view(dtype).view(place["shape"])
    return found


def _insist(folder: Path, found: Made, wanted: Made) -> None:
    others = [
        f"{one.name.replace('_', ' ')} ({getattr(found, one.name)}, now {getattr(wanted, one.name)})"
        for one in dataclasses.fields(Made)
        if one.name != "model" and getattr(found, one.name) != getattr(wanted, one.name)
    ]
    others = [*differing(found.model, wanted.model), *others]
    if others:
        raise CallerMistake(
            f"{folder} holds outputs that were made otherwise: another {', another '.join(others)}",
            expected="a folder of the same model, data and sizes, or an empty one",
            remedy=_REMEDY,
        )


def _kind(tensor: torch.Tensor) -> Output:
    return Output(dtype=str(tensor.dtype).removeprefix("torch."), shape=tuple(tensor.shape[1:]))


def _plain_names(names: Iterable[str]) -> dict[str, str]:
    """Words for files, each its own: also where a file system takes large and small letters for the same."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        plain = "".join(one if one.isalnum() or one in "-_" else "_" for one in name)
        numbered = (plain if not number else f"{plain}-{number + 1}" for number in itertools.count())
        found[name] = next(one for one in numbered if one.casefold() not in taken)
        taken.add(found[name].casefold())
    return found


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _npy(name: str, tensor: torch.Tensor) -> bytes:
    import numpy as np

    if tensor.dtype == torch.bfloat16:
        raise CallerMistake(
            f"the output {name} is in bfloat16, which numpy does not have",
            expected='outputs that numpy can hold, or format="safetensors"',
            remedy='format="safetensors"',
        )
    file = io.BytesIO()
    np.save(file, tensor.numpy(), allow_pickle=False)
    return file.getvalue()


def _safetensors(tensors: dict[str, torch.Tensor]) -> bytes:
    # Wide ones first: then all are aligned without gaps, which the format does not allow.
    ordered = sorted(tensors.items(), key=lambda pair: -pair[1].element_size())
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    pieces, offset = [], 0
    for name, tensor in ordered:
        dtype = str(tensor.dtype).removeprefix("torch.")
        size = tensor.numel() * tensor.element_size()
        if dtype not in _NAMES:
            raise CallerMistake(
                f"the output {name} is in {dtype}, which safetensors does not have",
                expected="outputs in a dtype of safetensors",
                remedy="cast it in the module",
            )
        place = [offset, offset + size]
        header[name] = {"dtype": _NAMES[dtype], "shape": list(tensor.shape), "data_offsets": place}
        pieces.append(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % _ALIGN)
    return b"".join([len(text).to_bytes(8, "little"), text, *pieces])
