"""A trace file in pieces of whole events, without reading it whole.

A Chrome trace is one JSON document, an object with a list `traceEvents` or that list alone, and may have
gigabytes. Events are cut apart where one ends and the next begins; whoever decodes a piece notices if a cut
was wrong, and asks for the piece to be scanned token by token (`scan`).
"""

import contextlib
import dataclasses
import gzip
import io
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from flatout.records.errors import CallerMistake

CHUNK_BYTES = 8 << 20
# No event is that large: a piece without an end is not a trace, or a bomb.
LARGEST_EVENT_BYTES = 64 << 20
_HEAD_BYTES = 16 << 20
# At a time: of a file that is cut off, no more than the last bite is lost.
_BITE_BYTES = 64 << 10

_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_BARE_LIST = re.compile(rb"\s*\[")
# Where one event ends and the next begins. Names of kernels have braces in them, but no bare quotes.
_CUT = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|id|args|s|bp)"\s*:)')
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]"]', re.DOTALL)
_GZIP = b"\x1f\x8b"
_CUT_OFF = (EOFError, zlib.error, gzip.BadGzipFile)
_READABLE = "a Chrome trace (JSON, plain or gzip), as torch.profiler writes it, or an export of nsys or ncu"


class NotATrace(CallerMistake):
    """A file that holds no list of trace events."""

    def __init__(self, path: Path, problem: str, *, expected: str = "", remedy: str = "") -> None:
        super().__init__(
            f"{path}: {problem}",
            expected=expected or _READABLE,
            remedy=remedy or "flatout trace --help",
        )


@dataclasses.dataclass(frozen=True)
class Piece:
    """Some events of a file: bytes of a plain file by place, of a compressed one as they are."""

    path: str
    start: int
    end: int
    data: bytes | None = None

    def read(self) -> bytes:
        """Its bytes."""
        if self.data is not None:
            return self.data
        with Path(self.path).open("rb") as file:
            file.seek(self.start)
            return file.read(self.end - self.start)


@dataclasses.dataclass(frozen=True)
class Scanned:
    """Objects found in a piece, by place; how far that went, and whether the list of events ended there."""

    objects: list[tuple[int, int]]
    upto: int
    ended: bool


def pieces(path: Path) -> Iterator[Piece]:
    """The events of a trace, cut into pieces."""
    try:
        with path.open("rb") as file:
            compressed = file.read(2) == _GZIP
    except OSError as error:
        raise NotATrace(path, error.strerror or "it cannot be read") from error
    if compressed:
        yield from _of_a_stream(path)
    else:
        yield from _of_a_file(path)


def head_of(path: Path) -> bytes:
    """What stands before the events: properties of devices, ranks, versions."""
    head = b""
    with contextlib.suppress(*_CUT_OFF, OSError), _opened(path) as file:
        for more in _chunks(file):
            head += more
            if len(head) >= _HEAD_BYTES or _LIST.search(head) is not None:
                break
    found = _LIST.search(head)
    return head[: found.start()] if found is not None else b""


def scan(data: bytes) -> Scanned:
    """Token by token, iteratively: nothing in it can go too deep, or be taken for what it is not."""
    objects: list[tuple[int, int]] = []
    depth, start = 0, 0
    for token in _TOKEN.finditer(data):
        text = token.group()
        if text == b'"':  # a string without an end
            return Scanned(objects, start if depth else token.start(), ended=False)
        if text in (b"{", b"["):
            if depth == 0:
                start = token.start()
            depth += 1
        elif text in (b"}", b"]"):
            if depth == 0:
                return Scanned(objects, token.start(), ended=True)
            depth -= 1
            if depth == 0:
                objects.append((start, token.end()))
    return Scanned(objects, start if depth else len(data), ended=False)


def _opened(path: Path) -> io.BufferedIOBase:
    with path.open("rb") as file:
        compressed = file.read(2) == _GZIP
    return gzip.open(path, "rb") if compressed else path.open("rb")


def _chunks(file: io.BufferedIOBase) -> Iterator[bytes]:
    """Its bytes; where a compressed file is cut off, what there is, and then the error."""
    chunk = bytearray()
    try:
        while more := file.read1(min(_BITE_BYTES, CHUNK_BYTES)):
            chunk += more
            if len(chunk) >= CHUNK_BYTES:
                yield bytes(chunk)
                chunk.clear()
    except _CUT_OFF:
        yield bytes(chunk)
        raise
    yield bytes(chunk)


def _begin(path: Path, head: bytes) -> int:
    """Where the first event may stand."""
    found = _LIST.search(head) or _BARE_LIST.match(head)
    if found is None:
        problem = "it is empty" if not head.strip() else "it has no list of trace events"
        raise NotATrace(path, problem)
    return found.end()


def _of_a_file(path: Path) -> Iterator[Piece]:
    with path.open("rb") as file:
        start = _begin(path, file.read(_HEAD_BYTES))
        size = os.fstat(file.fileno()).st_size
        while start < size:
            end = _cut_after(file, path, start + CHUNK_BYTES, size)
            yield Piece(str(path), start, end)
            start = end


def _cut_after(file: IO[bytes], path: Path, place: int, size: int) -> int:
    """The first cut at or after a place, or the file's end."""
    window = 64 << 10
    while place < size:
        file.seek(place)
        found = _CUT.search(file.read(window))
        if found is not None:
            return place + found.end()
        if place + window >= size:
            return size
        if window >= LARGEST_EVENT_BYTES:
            raise NotATrace(path, f"no event ends in the {window >> 20} MiB from byte {place} on")
        window *= 8
    return size


def _of_a_stream(path: Path) -> Iterator[Piece]:
    buffer, place, begun = b"", 0, False
    try:
        with gzip.open(path, "rb") as file:
            for more in _chunks(file):
                buffer += more
                if not begun:
                    if len(buffer) < _HEAD_BYTES and _LIST.search(buffer) is None:
                        continue
                    start = _begin(path, buffer)
                    buffer, place, begun = buffer[start:], start, True
                last = _last_cut(buffer)
                if last is None:
                    if len(buffer) > LARGEST_EVENT_BYTES:
                        raise NotATrace(
                            path, f"no event ends in the {len(buffer) >> 20} MiB from byte {place} on"
                        )
                    continue
                yield Piece(str(path), place, place + last, buffer[:last])
                buffer, place = buffer[last:], place + last
    except _CUT_OFF as error:
        if not begun and not buffer:
            raise NotATrace(path, f"it cannot be decompressed: {error}") from error
        # Cut off in the middle: what came is read, and found to be incomplete.
    if not begun:
        place = _begin(path, buffer)
        buffer = buffer[place:]
    yield Piece(str(path), place, place + len(buffer), buffer)


def _last_cut(buffer: bytes) -> int | None:
    """Looked for from the end, in windows: nearly always in the first."""
    window = 64 << 10
    while True:
        start = max(0, len(buffer) - window)
        found = None
        for found in _CUT.finditer(buffer, start):  # noqa: B007 - the last one
            pass
        if found is not None:
            return found.end()
        if start == 0:
            return None
        window *= 8
