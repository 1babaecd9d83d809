"""What is in a file that torch.save wrote: a zip archive, of which the directory and data.pkl are read.

Files of torch before 1.6 are a row of pickles, with the storages after them. In either, pickles are
followed and never unpickled (`pickled.py`).
"""

import dataclasses
import io
import re
import struct
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from flatout.memory.pickled import Malformed, Pickled, Storage, Tensor, find_tensors, read_pickle
from flatout.memory.pickled_names import ITEM_BYTES
from flatout.memory.pieces import ModelFile, Piece, fault
from flatout.records.errors import CallerMistake

ZIP_START = b"PK\x03\x04"
# The number that torch put first before it wrote zip archives, as pickles of any protocol have it.
LEGACY_MAGIC = b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
# The pickles before the one with the model: the number, a version, and facts about the machine.
_LEGACY_PREAMBLE = 3
# An old file's pickles come first, before its storages.
_LEGACY_HEAD = 16 << 20
_LONGEST_PICKLE = 64 << 20
# Hundreds of thousands of members.
_LONGEST_DIRECTORY = 32 << 20
_LOCAL_HEADER = struct.Struct("<4s22xHH")
_ENCRYPTED = 1
_NAMES_SHOWN = 5
# From 4 on, names stand in pickles in another way than torch reads with weights_only=True.
_PROTOCOL_OF_NAMES = 4
# What leads out of a folder, or means something else to another reader.
_ODD_NAME = re.compile(r"^/|\\|^[A-Za-z]:|[\x00-\x1f]|(^|/)\.\.(/|$)")
# The pickle and the storages, whatever the folder is called that they are in.
_DATA = re.compile(r"[^/]*/data(\.pkl|/.*)", re.DOTALL)
_SAVE_AGAIN = "load it where it was made, and save it again with torch.save"
_DO_NOT_LOAD = "do not load it; get the weights as .safetensors, which cannot carry code"


def read_archive(path: Path, size: int) -> ModelFile:
    """A zip archive of torch's; raises CallerMistake."""
    members = _members(path, size)
    root = next(iter(members)).split("/")[0]
    pickled = members.get(f"{root}/data.pkl")
    if pickled is None:
        raise fault(
            path,
            "it is a zip archive without data.pkl",
            expected="an archive that torch.save wrote",
            remedy="give the file with the weights: .safetensors, .pt, .pth or .bin",
        )
    if pickled.file_size > _LONGEST_PICKLE:
        raise fault(
            path,
            f"its data.pkl is {pickled.file_size} bytes long",
            expected=f"at most {_LONGEST_PICKLE}, with tensors in members of their own",
            remedy=_SAVE_AGAIN,
        )
    # Where there are constants, torch reads it as TorchScript, whose pickles call nothing.
    is_script = f"{root}/constants.pkl" in members
    try:
        read = _follow(path, io.BytesIO(_content(path, pickled)), is_script=is_script)
    except Malformed as error:
        raise _damaged(path, error) from error
    start = f"{root}/data/"
    sizes = {
        name.removeprefix(start): info.file_size for name, info in members.items() if name.startswith(start)
    }
    found = _found(read)
    for storage in found.storages.values():
        there = sizes.get(storage.key)
        if there is None:
            raise fault(path, f"data/{storage.key} is missing", expected="a member for each storage")
        if there != storage.size_bytes:
            raise fault(
                path,
                f"data/{storage.key} is {there} bytes long",
                expected=f"{storage.size_bytes} bytes, as data.pkl says",
            )
    notes = list(_notes(read, is_script=is_script))
    lost = sizes.keys() - found.storages.keys()
    if lost and read.is_whole:
        notes.append(f"{len(lost)} storages belong to no tensor that was found")
    return ModelFile(
        path=path,
        format="torchscript" if is_script else "torch",
        file_bytes=size,
        pieces=tuple(found.pieces(sizes)),
        unfamiliar=() if is_script else read.unfamiliar,
        notes=tuple(notes),
    )


def read_legacy(path: Path, stream: io.BufferedReader, size: int) -> ModelFile:
    """A file from before torch wrote archives; raises CallerMistake."""
    stream.seek(0)
    head = io.BytesIO(stream.read(_LEGACY_HEAD))
    is_cut = size > _LEGACY_HEAD
    try:
        for _ in range(_LEGACY_PREAMBLE):
            _follow(path, head, is_script=False)
        read = _follow(path, head, is_script=False)
    except Malformed as error:
        if not is_cut:
            raise _damaged(path, error) from error
        # The pickle may go on where we stop.
        read = Pickled(value=None, names=(), hostile=(), protocol=0, is_whole=False)
    found = _found(read)
    sizes = {key: storage.size_bytes for key, storage in found.storages.items()}
    if sum(sizes.values()) > size:
        raise fault(
            path,
            f"its tensors take {sum(sizes.values())} bytes, and it has {size}",
            expected="a file that has not been cut off",
        )
    if not read.is_whole:
        sizes = {"": size}
    return ModelFile(
        path=path,
        format="legacy",
        file_bytes=size,
        pieces=tuple(found.pieces(sizes)),
        unfamiliar=read.unfamiliar,
        notes=(
            "it is in the format of torch before 1.6, which cannot be mapped",
            *_notes(read, is_script=False),
        ),
    )


# The archive.


class _Sparing(io.FileIO):
    """A file of which nobody reads much at once, however large it says that its directory is."""

    def read(self, size: int | None = -1, /) -> bytes:
        """As ever, within bounds."""
        if size is None or size < 0:
            size = _LONGEST_DIRECTORY
        if size > _LONGEST_DIRECTORY:
            raise zipfile.BadZipFile(f"a directory of {size} bytes")
        return super().read(size) or b""


def _members(path: Path, size: int) -> dict[str, zipfile.ZipInfo]:
    """Members in the order in which they lie; those that cannot be what torch.save wrote are refused."""
    try:
        with _Sparing(path) as stream, zipfile.ZipFile(stream) as archive:
            infos = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError, LookupError, EOFError) as error:
        raise _bad_archive(path, error) from error
    except (OverflowError, RuntimeError, struct.error) as error:
        raise _bad_archive(path, error) from error
    reached = 0
    folded = set()
    for info in sorted(infos, key=lambda info: info.header_offset):
        problem = _problem(info)
        if not problem and info.filename.lower() in folded:
            problem = "is there twice"
        # Members that lie over one another are how a small file pretends to be a large one.
        last = size - _LOCAL_HEADER.size - info.compress_size
        if not problem and not reached <= info.header_offset <= last:
            problem = "lies outside of the file, or over another"
        if problem:
            raise fault(
                path,
                f"its member {info.filename[:200]!r} {problem}",
                expected="an archive as torch.save writes it: plain, with each member once",
                remedy=_SAVE_AGAIN,
            )
        folded.add(info.filename.lower())
        reached = info.header_offset + _LOCAL_HEADER.size + info.compress_size
    if not infos:
        raise fault(path, "it is an empty archive", expected="an archive that torch.save wrote")
    return {info.filename: info for info in infos}


def _bad_archive(path: Path, error: Exception) -> CallerMistake:
    said = str(error)[:200] or type(error).__name__
    return fault(
        path,
        f"its archive cannot be read ({said})",
        expected="a zip archive with its directory at the end, which is missing where a file was cut off",
    )


def _problem(info: zipfile.ZipInfo) -> str:
    if info.orig_filename != info.filename or _ODD_NAME.search(info.filename):
        return "has a name that leads elsewhere"
    if info.flag_bits & _ENCRYPTED:
        return "is encrypted"
    # TorchScript compresses its code, which is neither read nor counted.
    is_stored = info.compress_type == zipfile.ZIP_STORED and info.compress_size == info.file_size
    if not is_stored and _DATA.fullmatch(info.filename):
        return "is compressed"
    return ""


def _content(path: Path, info: zipfile.ZipInfo) -> bytes:
    """A member's bytes. Checksums are not looked at: torch can be told to write none."""
    with path.open("rb") as stream:
        stream.seek(info.header_offset)
        header = stream.read(_LOCAL_HEADER.size)
        if len(header) == _LOCAL_HEADER.size and header.startswith(ZIP_START):
            _, name_length, extra_length = _LOCAL_HEADER.unpack(header)
            stream.seek(name_length + extra_length, io.SEEK_CUR)
            content = stream.read(info.file_size)
            if len(content) == info.file_size:
                return content
    raise fault(path, f"its member {info.filename!r} is damaged", expected="an archive that torch.save wrote")


# The pickle.


def _follow(path: Path, stream: io.BytesIO, *, is_script: bool) -> Pickled:
    """Follow a pickle, and refuse what it should not name; raises Malformed and CallerMistake."""
    try:
        read = read_pickle(stream)
    except Malformed as error:
        if error.hostile and not is_script:
            raise _refused(path, error.hostile) from error
        raise
    if read.hostile and not is_script:
        raise _refused(path, read.hostile)
    return read


def _damaged(path: Path, error: Malformed) -> CallerMistake:
    return fault(path, f"its pickle cannot be followed: {error}", expected="a pickle that torch.save wrote")


def _refused(path: Path, hostile: tuple[str, ...]) -> CallerMistake:
    return fault(
        path,
        f"refused: unpickling it would use {_listed(hostile)}; nothing of it was run",
        expected="tensors, and the containers that hold them",
        remedy=_DO_NOT_LOAD,
    )


def _listed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(name[:200] for name in names[:_NAMES_SHOWN]) + more


@dataclasses.dataclass
class _Found:
    """Storages and their tensors, by keys, in the order in which they are found."""

    storages: dict[str, Storage] = dataclasses.field(default_factory=dict)
    paths: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    # By place and shape, so that one view under two names counts once.
    views: dict[str, dict[object, Tensor]] = dataclasses.field(default_factory=dict)

    def pieces(self, sizes: Mapping[str, int]) -> Iterator[Piece]:
        """One piece for each storage that is in the file."""
        for key in [*self.storages, *(key for key in sizes if key not in self.storages)]:
            if key not in sizes:
                continue
            views = list(self.views.get(key, {}).values())
            storage = self.storages.get(key)
            dtype = views[0].dtype if views else storage.dtype if storage is not None else None
            stored = sizes[key]
            used = sum(view.elements * ITEM_BYTES[view.dtype] for view in views)
            # Views overlap, and one that repeats what is there has more elements than bytes.
            used = min(used, stored) if views else stored
            yield Piece(
                path=self.paths.get(key, ()),
                tensor_count=len(views),
                dtype=dtype,
                element_count=used // ITEM_BYTES[dtype] if dtype else 0,
                stored_bytes=stored,
                used_bytes=used,
                device=storage.device if storage is not None else "",
            )


def _found(read: Pickled) -> _Found:
    found = _Found()
    for path, item in find_tensors(read.value):
        storage = item.storage if isinstance(item, Tensor) else item
        found.storages.setdefault(storage.key, storage)
        found.paths.setdefault(storage.key, path)
        if isinstance(item, Tensor):
            views = found.views.setdefault(storage.key, {})
            views.setdefault((item.offset, item.shape, item.stride), item)
    return found


def _notes(read: Pickled, *, is_script: bool) -> Iterator[str]:
    if is_script:
        yield "it is a TorchScript archive: torch.jit.load reads it, torch.load does not"
        return
    if not read.is_whole:
        yield "its pickle is too long to follow: sizes are known, names and what it would run are not"
    if read.unfamiliar:
        yield (
            f"torch.load(weights_only=True) would refuse it for {_listed(read.unfamiliar)}: "
            "allow them with torch.serialization.safe_globals, where you trust them"
        )
    if read.protocol >= _PROTOCOL_OF_NAMES:
        yield f"torch.load(weights_only=True) may refuse its pickle, which is of protocol {read.protocol}"
