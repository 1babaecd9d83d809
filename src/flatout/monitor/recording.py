"""Frames kept in a file, one JSON document a line, and read back: a recording never outgrows its limit."""

import contextlib
import gzip
import io
import os
import stat
import tempfile
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Self

import msgspec

from flatout.monitor.packed import beginning_of, mend, unpacked
from flatout.records.codec import document, schema_name
from flatout.records.errors import CallerMistake, CannotWrite, CorruptFile, EnvironmentProblem, ForeignVersion
from flatout.records.watching import FRAME_KIND, FRAME_VERSION, Frame

MOST_BYTES = 256 << 20
# A compressed recording is unpacked to be read; more than this is no recording of ours.
_UNPACKED_MOST_BYTES = 8 << 30
_COMPRESSED = ".gz"
_PIECE = 1 << 20
_BEGINNING = f'{{"schema":"flatout.{FRAME_KIND}/'.encode()
# Thousands of GPUs with all their processes take less; what is longer is no frame, and is not kept in memory.
_LINE_MOST_BYTES = 64 << 20
# So many frames at most are lost with a machine that loses its power.
_FLUSH_EVERY = 10
_REMEDY = "flatout watch --record FILE   # makes one"


def frame_line(frame: Frame) -> bytes:
    """A frame as one line of JSON."""
    return msgspec.json.encode(document(FRAME_KIND, FRAME_VERSION, frame)) + b"\n"


class Recorder:
    """Writes frames. A file of half of `most_bytes` is put aside as FILE.1, over the one before."""

    def __init__(self, path: Path, most_bytes: int = MOST_BYTES) -> None:
        self._path, self._most_bytes = path, most_bytes
        self._frames = 0
        self._file: IO[bytes] | None = None
        self._raw: IO[bytes] | None = None
        self._is_plain = False
        for part in (aside(path), path):
            _refuse_another(part)
        self._mend()
        self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, frame: Frame) -> None:
        """Write one frame."""
        if self._file is None or self._raw is None:
            return
        try:
            self._file.write(frame_line(frame))
            self._frames += 1
            if self._frames % _FLUSH_EVERY == 0:
                self._file.flush()
            # What is compressed comes out late; what is written by then counts.
            if self._is_plain and self._raw.tell() >= self._most_bytes // 2:
                self.close()
                self._path.replace(aside(self._path))
                self._open()
        except OSError as error:
            raise CannotWrite(self._path, error, remedy="record elsewhere, or free some room") from error

    def close(self) -> None:
        """Finish the file. Safe to call twice."""
        with contextlib.suppress(OSError):
            if self._file is not None:
                self._file.close()
            if self._raw is not None:
                self._raw.close()
        self._file = self._raw = None

    def _mend(self) -> None:
        """What a killed recorder left in the middle of a line ends there: frames to come begin a new one."""
        if not self._path.is_file():
            return
        try:
            if self._path.suffix == _COMPRESSED:
                mend(self._path)
            else:
                _end_line(self._path)
        except OSError as error:
            raise CannotWrite(
                self._path, error, remedy="name another file; this one cannot be added to"
            ) from error

    def _open(self) -> None:
        try:
            # A recording of before is added to.
            self._raw = self._path.open("ab")
            # Pipes and devices stay where they are: whoever put /dev/null aside would break the machine.
            self._is_plain = stat.S_ISREG(os.fstat(self._raw.fileno()).st_mode)
        except OSError as error:
            raise CannotWrite(
                self._path, error, remedy="name a file in a folder that can be written"
            ) from error
        packed = self._path.suffix == _COMPRESSED
        self._file = gzip.GzipFile(fileobj=self._raw, mode="ab") if packed else self._raw  # type: ignore[assignment]


def _refuse_another(path: Path) -> None:
    """A script named by mistake is neither added to nor written over; pipes and devices hold nothing."""
    if not path.is_file():
        return
    try:
        with path.open("rb") as file:
            size = len(_BEGINNING)
            beginning = beginning_of(file, size) if path.suffix == _COMPRESSED else file.read(size)
    except OSError:
        return  # whoever writes to it will hear why not
    except zlib.error:
        beginning = None
    # Less than a whole one is what a recorder leaves that is killed at once.
    if beginning is None or not _BEGINNING.startswith(beginning):
        raise CallerMistake(
            f"{path} is there, and is no recording",
            expected="a file of `flatout watch --record` to add to, or a new one",
            remedy=f"--record {path.name}.watch.jsonl",
        )


def _end_line(path: Path) -> None:
    with path.open("r+b") as file:
        if file.seek(0, os.SEEK_END) and file.seek(-1, os.SEEK_END) >= 0 and file.read(1) != b"\n":
            file.write(b"\n")


def aside(path: Path) -> Path:
    """Where the older half of a recording lies."""
    return path.with_name(
        f"{path.name.removesuffix(_COMPRESSED)}.1{_COMPRESSED * path.name.endswith(_COMPRESSED)}"
    )


class Recording:
    """The frames of a recording, by number. A line that cannot be read is counted and left out."""

    def __init__(self, path: Path, unpacked_most_bytes: int = _UNPACKED_MOST_BYTES) -> None:
        self._path = path
        self._file: IO[bytes] = io.BytesIO()
        self._starts = array("Q")
        self.unreadable = 0
        parts = [part for part in (aside(path), path) if part.is_file()]
        if not parts:
            raise EnvironmentProblem(f"{path} is not there", expected="a recording", remedy=_REMEDY)
        self._file = self._unpacked(parts, unpacked_most_bytes)
        try:
            self._find_lines()
            if not self._starts:
                raise CorruptFile(path, "it holds no frame", remedy=_REMEDY)
        except (CorruptFile, ForeignVersion):
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, number: int) -> Frame:
        self._file.seek(self._starts[number])
        return msgspec.convert(msgspec.json.decode(self._file.readline()), Frame)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _unpacked(self, parts: list[Path], most_bytes: int) -> IO[bytes]:
        """One plain file of all parts: itself where it is one, else a temporary one."""
        if len(parts) == 1 and parts[0].suffix != _COMPRESSED:
            return parts[0].open("rb")
        whole = tempfile.TemporaryFile(prefix="flatout-replay-")  # noqa: SIM115 - closed by close()
        last = b""
        for part in parts:
            if last not in (b"", b"\n"):  # the part before was left in the middle of a line
                whole.write(b"\n")
            for piece in _pieces(part):
                whole.write(piece)
                last = piece[-1:] or last
                if whole.tell() > most_bytes:
                    whole.close()
                    raise CorruptFile(part, f"it unpacks to more than {most_bytes >> 20} MiB", remedy=_REMEDY)
        return whole

    def _find_lines(self) -> None:
        self._file.seek(0)
        at = 0
        wanted = f'"{schema_name(FRAME_KIND, FRAME_VERSION)}"'.encode()
        while text := self._file.readline(_LINE_MOST_BYTES):
            if wanted in text[:64] and _is_frame(text):
                self._starts.append(at)
            else:
                self._refuse_foreign(text)
                self.unreadable += 1
            at += len(text)

    def _refuse_foreign(self, text: bytes) -> None:
        """Another version's file is refused as a whole; a damaged line is left out."""
        if text.startswith(_BEGINNING) and not self._starts:
            found = text[len(b'{"schema":"') : 64].split(b'"')[0].decode(errors="replace")
            if found != schema_name(FRAME_KIND, FRAME_VERSION):
                raise ForeignVersion(self._path, found, readable=repr(schema_name(FRAME_KIND, FRAME_VERSION)))


def _pieces(path: Path) -> Iterator[bytes]:
    """What a file holds, unpacked, a piece at a time."""
    with path.open("rb") as file:
        if path.suffix == _COMPRESSED:
            yield from unpacked(file)
        else:
            yield from iter(lambda: file.read(_PIECE), b"")


def _is_frame(text: bytes) -> bool:
    try:
        msgspec.json.decode(text, type=Frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True
