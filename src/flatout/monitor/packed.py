"""Compressed recordings: a gzip member for each start of a recorder, read as far as each of them goes.

A recorder that is killed leaves its member unfinished, and what comes behind it is another one's. So members
are looked for one by one, and where something is missing a line ends: whoever reads lines finds one there
that cannot be read, and the next one whole.
"""

import contextlib
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from gzip import GzipFile
from pathlib import Path
from typing import IO

# How zlib calls what gzip writes.
_GZIP = 31
_PIECE = 1 << 14
_SEARCHED = 1 << 20
# The method, flags, time, speed and system: three bytes alone stand within compressed data, too.
_HEADER = re.compile(rb"\x1f\x8b\x08[\x00-\x1f].{4}[\x00\x02\x04][\x00-\x0d\xff]", re.DOTALL)
_HEADER_BYTES = 10


def unpacked(file: IO[bytes], start: int = 0) -> Iterator[bytes]:
    """What a file holds from a member on, a piece at a time; b"\\n" where something is missing in between."""
    at: int | None = start
    while at is not None:
        member = _Member(file, at)
        yield from member.pieces()
        after = member.end if member.end is not None else at + 1
        at = _next_header(file, after)
        if at is not None and at != member.end:
            yield b"\n"


def mend(path: Path) -> None:
    """Pack anew what can be read from the first unfinished member on: other tools end there, else."""
    with path.open("r+b") as file:
        start = _first_unfinished(file)
        if start is None:
            return
        with tempfile.TemporaryFile(prefix="flatout-mend-") as packed:
            with GzipFile(fileobj=packed, mode="wb", filename="") as packing:
                last = b"\n"
                for piece in unpacked(file, start):
                    packing.write(piece)
                    last = piece[-1:] or last
                if last != b"\n":
                    packing.write(b"\n")
            packed.seek(0)
            file.seek(start)
            shutil.copyfileobj(packed, file)
            file.truncate()


def beginning_of(file: IO[bytes], size: int) -> bytes:
    """So many of its first bytes, unpacked, or what it has; zlib.error where it is no gzip."""
    return zlib.decompressobj(_GZIP).decompress(file.read(_PIECE), size)


class _Member:
    """One start of a recorder."""

    def __init__(self, file: IO[bytes], start: int) -> None:
        self._file, self._start = file, start
        # Behind its last byte; None where it was not finished, or is damaged.
        self.end: int | None = None

    def pieces(self) -> Iterator[bytes]:
        """What can be unpacked of it."""
        unpacking, at = zlib.decompressobj(_GZIP), self._start
        while True:
            self._file.seek(at)
            packed = self._file.read(_PIECE)
            if not packed:
                return
            before = unpacking.copy()
            try:
                came = unpacking.decompress(packed)
            except zlib.error:
                yield _up_to_the_damage(before, packed)
                return
            at += len(packed)
            if unpacking.eof:
                self.end = at - len(unpacking.unused_data)
            yield came
            if unpacking.eof:
                return


def _up_to_the_damage(unpacking: "zlib._Decompress", packed: bytes) -> bytes:
    """A call that fails gives nothing, also of what came before the damage."""
    came = bytearray()
    with contextlib.suppress(zlib.error):
        for place in range(len(packed)):
            came += unpacking.decompress(packed[place : place + 1])
    return bytes(came)


def _first_unfinished(file: IO[bytes]) -> int | None:
    """Where the first member begins that was not finished; None where all of them were."""
    at, size = 0, file.seek(0, 2)
    while at < size:
        member = _Member(file, at)
        for _ in member.pieces():
            pass
        if member.end is None:
            return at
        at = member.end
    return None


def _next_header(file: IO[bytes], at: int) -> int | None:
    """Where the next member begins, from there on."""
    file.seek(at)
    searched = b""
    while piece := file.read(_SEARCHED):
        searched += piece
        found = _HEADER.search(searched)
        if found is not None:
            return at + found.start()
        at += max(len(searched) - _HEADER_BYTES + 1, 0)
        searched = searched[-(_HEADER_BYTES - 1) :]
    return None
