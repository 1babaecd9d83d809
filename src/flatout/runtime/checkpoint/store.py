"""A folder of checkpoints: what is in it, which are complete, and how a new one comes into being.

A checkpoint is a folder `step-000000500` with its files and a manifest of their sizes and hashes. It is
written under another name: each file is synced, the manifest last, then the folder; then it gets its name,
and the folder above is synced. Whatever dies in between leaves a folder that has no name yet, and every older
checkpoint as it was. Nothing is ever overwritten, and nothing is pruned before what replaces it has been read
back. One of the same step makes way under a name by which it is still found, until its successor is proven.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

from flatout.records.atomic import sync_folder, write_atomically

MANIFEST = "manifest.json"
# A state without its tensors, and which parts of tensors are where.
STATE_FILE, PARTS_FILE = "state.json", "parts.json"
FORMAT, VERSION = "flatout.checkpoint", 1
_NAME = re.compile(r"(\.replaced-)?step-(\d{9,})")
_OF_A_RANK = "rank-{}.files.json"
_PRUNED = ".pruned-"
_ABANDONED = "abandoned-"
_REPLACED = ".replaced-"
_PIECE = 8 << 20
_LOOK_EVERY_S = 0.02
# A manifest is a few lines a file.
_LARGEST_MANIFEST = 64 << 20


class Damaged(Exception):
    """A checkpoint that is not what its manifest says, in words."""


@dataclasses.dataclass(frozen=True)
class Stored:
    """A checkpoint that was committed."""

    step: int
    path: Path


def name_of(step: int) -> str:
    """The name of a checkpoint's folder: in the order of steps."""
    return f"step-{step:09d}"


def checkpoints(folder: Path) -> list[Stored]:
    """Those that were committed, the newest first.

    One that a kill found making way for another of its step is behind that.
    """
    found = []
    with contextlib.suppress(FileNotFoundError):
        for path in folder.iterdir():
            matched = _NAME.fullmatch(path.name)
            if matched is not None and path.is_dir():
                found.append((int(matched[2]), matched[1] is None, path))
    return [Stored(step, path) for step, _, path in sorted(found, reverse=True)]


# Files of a checkpoint that are written or read side by side: a core hashes a gigabyte a second.
AT_ONCE = 4

# Writing ----------------------------------------------------------------------------------------------------


class Partial:
    """A checkpoint in the making: files are added, then it is committed, or given up.

    `token` names the training: all of its ranks add to the same folder.
    """

    def __init__(self, folder: Path, step: int, token: str) -> None:
        self._folder = folder
        self.step = step
        self.path = folder / f".partial-{name_of(step)}-{token}"
        self._files: dict[str, dict[str, Any]] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self.path.mkdir(exist_ok=True)

    def add(self, name: str, pieces: Callable[[], Iterator[bytes | memoryview]]) -> None:
        """One file, from pieces of memory, on the disk when this returns."""
        digest, size = hashlib.blake2b(digest_size=32), 0
        with (self.path / name).open("wb", buffering=0) as file:
            for piece in pieces():
                digest.update(piece)
                size += len(piece)
                _write_all(file, piece)
            os.fsync(file.fileno())
        self._files[name] = {"bytes": size, "blake2b": digest.hexdigest()}

    def finish_rank(self, rank: int) -> None:
        """All that this rank has to add is there: the first rank, which commits, waits for that."""
        write_atomically(self.path / _OF_A_RANK.format(rank), json.dumps(self._files).encode())

    def gather(self, ranks: int, *, wait_s: float, is_needed: Callable[[], bool] = lambda: True) -> None:
        """Wait for what the other ranks add; raises TimeoutError when one of them does not come."""
        deadline = time.monotonic() + wait_s
        for rank in range(1, ranks):
            listed = self.path / _OF_A_RANK.format(rank)
            while not listed.exists():
                if not self.path.is_dir():
                    raise FileNotFoundError("another rank could not write its part, and gave it all up")
                if time.monotonic() > deadline or not is_needed():
                    raise TimeoutError(f"rank {rank} has not written its part")
                time.sleep(_LOOK_EVERY_S)
            self._files |= json.loads(listed.read_bytes())
            listed.unlink()

    def commit(self, about: dict[str, Any]) -> Stored:
        """The manifest, then the name. One of this step that was there before makes way: see `replaced`."""
        manifest = {"format": FORMAT, "version": VERSION, "step": self.step, **about, "files": self._files}
        with (self.path / MANIFEST).open("wb", buffering=0) as file:
            _write_all(file, json.dumps(manifest, indent=1).encode())
            os.fsync(file.fileno())
        sync_folder(self.path)
        named = self._folder / name_of(self.step)
        try:
            self.path.rename(named)
        except OSError:
            if not named.is_dir():
                raise
            # Rename does not replace a folder with something in it.
            _make_way(self._folder, Stored(self.step, named))
            self.path.rename(named)
        sync_folder(self._folder)
        return Stored(self.step, named)

    def give_up(self) -> None:
        """Leave nothing behind."""
        shutil.rmtree(self.path, ignore_errors=True)


def replaced(stored: Stored) -> Stored | None:
    """What made way for this one, and is still there: the new one is to be read back before it goes."""
    path = stored.path.with_name(f"{_REPLACED}{stored.path.name}")
    return Stored(stored.step, path) if path.is_dir() else None


def _make_way(folder: Path, stored: Stored) -> None:
    """Take its name from this one, so that it is found until another has that name."""
    before = replaced(stored)
    if before is not None and not _is_whole(stored.path):  # killed here before: that one is the better
        _remove(folder, [stored])
        return
    if before is not None:
        _remove(folder, [before])
    stored.path.rename(stored.path.with_name(f"{_REPLACED}{stored.path.name}"))
    sync_folder(folder)


def drop_replaced(folder: Path, stored: Stored) -> None:
    """Remove what made way for this one, which was read back."""
    before = replaced(stored)
    if before is not None:
        _remove(folder, [before])


def _write_all(file: BinaryIO, data: bytes | memoryview) -> None:
    # Memory that is shared cannot be closed while there are views of it, and be it by an error's traceback.
    with memoryview(data) as whole:
        done = 0
        while done < len(whole):
            with whole[done:] as rest:
                done += file.write(rest)


def prune(folder: Path, keep: int, *, token: str, protect: Stored | None = None) -> list[Stored]:
    """Remove all but the newest `keep`, and what other trainings left unfinished; those that were removed.

    One that cannot be whole, by its files' sizes, counts for nothing; one that was replaced goes.
    """
    for path in folder.glob(".partial-*"):
        if f"-{token}" not in path.name:
            shutil.rmtree(path, ignore_errors=True)
    gone: list[Stored] = []
    steps = set[int]()
    for one in checkpoints(folder):
        if keep > 0 and one.step not in steps:
            if _is_whole(one.path, contents=False):
                keep -= 1
                steps.add(one.step)
        elif protect is None or one.path != protect.path:
            gone.append(one)
    _remove(folder, gone)
    return gone


def give_up_newer(folder: Path, stored: Stored) -> None:
    """Remove what is newer than this one: training went back to it."""
    _remove(folder, [one for one in checkpoints(folder) if one.step > stored.step])


def set_aside_newer(folder: Path, step: int) -> list[Path]:
    """Take their names from those that are newer: training went on from this step; what they are called now.

    They are not removed: whoever went back may have wished for a look at an older one, and no more.
    """
    return [_set_aside(folder, one) for one in checkpoints(folder) if one.step > step]


def set_aside_others(folder: Path, stored: Stored) -> list[Path]:
    """The same of all but this one: they are of another training, which nobody resumed."""
    return [_set_aside(folder, one) for one in checkpoints(folder) if one.path != stored.path]


def _set_aside(folder: Path, stored: Stored) -> Path:
    """Under a name that nothing has: what was set aside before stays, too."""
    name = f"{_ABANDONED}{name_of(stored.step)}"
    names = (folder / (name if count == 1 else f"{name}.{count}") for count in itertools.count(1))
    aside = next(path for path in names if not path.exists())
    stored.path.rename(aside)
    return aside


def _remove(folder: Path, gone: list[Stored]) -> None:
    for one in gone:
        # Without its name it is no checkpoint any more, however far this gets.
        with contextlib.suppress(FileNotFoundError):
            one.path.rename(folder / f"{_PRUNED}{one.path.name}")
    for path in folder.glob(f"{_PRUNED}*"):
        shutil.rmtree(path, ignore_errors=True)


# Reading ----------------------------------------------------------------------------------------------------


def read_manifest(path: Path) -> dict[str, Any]:
    """A checkpoint's manifest; raises Damaged where it is none."""
    try:
        with (path / MANIFEST).open("rb") as file:
            text = file.read(_LARGEST_MANIFEST + 1)
    except OSError as error:
        raise Damaged(f"it has no manifest ({error.strerror})") from error
    if len(text) > _LARGEST_MANIFEST:
        raise Damaged("its manifest is too large to be one")
    try:
        manifest = json.loads(text)
        files = manifest["files"]
        known = manifest["format"] == FORMAT and isinstance(manifest["step"], int)
        known = known and all(
            _is_plain_name(name) and isinstance(one["bytes"], int) and isinstance(one["blake2b"], str)
            for name, one in files.items()
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged("its manifest cannot be read") from error
    if not known:
        raise Damaged("its manifest is none of ours")
    if manifest.get("version") != VERSION:
        raise Damaged(f"it is of version {manifest.get('version')!r}; this Flatout reads {VERSION}")
    return dict(manifest)


def _is_plain_name(name: str) -> bool:
    return bool(re.fullmatch(r"[\w.-]+", name)) and not name.startswith(".")


def verify(path: Path, *, contents: bool = True) -> dict[str, Any]:
    """The manifest of a checkpoint whose files are all there, and all as they were written; else Damaged."""
    manifest = read_manifest(path)
    for name, said in manifest["files"].items():
        file = path / name
        try:
            size = file.stat().st_size
        except OSError as error:
            raise Damaged(f"{name} is missing") from error
        if size != said["bytes"]:
            raise Damaged(f"{name} has {size} bytes, and had {said['bytes']}")
    if contents:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            hashes = pool.map(_hash, [path / name for name in manifest["files"]])
            for (name, said), found in zip(manifest["files"].items(), hashes, strict=True):
                if found != said["blake2b"]:
                    raise Damaged(f"{name} is not what was written")
    return manifest


def _is_whole(path: Path, *, contents: bool = True) -> bool:
    try:
        verify(path, contents=contents)
    except Damaged:
        return False
    return True


def _hash(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=32)
    try:
        with path.open("rb", buffering=0) as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
    except OSError as error:
        raise Damaged(f"{path.name} cannot be read ({error.strerror})") from error
    return digest.hexdigest()


def complete(folder: Path, on_damage: Callable[[Stored, str], None]) -> Iterator[Stored]:
    """Those that are whole, the newest first; of those in between that are not, somebody is told."""
    for one in checkpoints(folder):
        try:
            verify(one.path)
        except Damaged as problem:
            on_damage(one, str(problem))
        else:
            yield one


def newest_complete(folder: Path, on_damage: Callable[[Stored, str], None]) -> Stored | None:
    """The newest that is whole; of newer ones that are not, somebody is told."""
    return next(complete(folder, on_damage), None)
