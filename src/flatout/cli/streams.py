"""Our own standard output and standard error, of which no end or fault reaches what a command is about."""

import contextlib
import io
import os
import sys
from typing import TextIO


class CannotPrint(OSError):
    """Standard output takes nothing: a full disk, a bad one, a terminal that is gone."""


class _Result(io.FileIO):
    """Standard output, whose failures are told from those of the files that a command writes."""

    def write(self, data: bytes, /) -> int | None:  # type: ignore[override]
        try:
            return super().write(data)
        except BrokenPipeError:  # a reader that went away, which click and rich know
            raise
        except OSError as error:
            raise CannotPrint(error.errno, error.strerror) from error


class _Beside(io.FileIO):
    """Standard error: words beside a result. Where nobody takes them they are lost, and nothing else is."""

    def write(self, data: bytes, /) -> int:  # type: ignore[override]
        with contextlib.suppress(OSError):
            written = super().write(data)
            if written is not None:
                return written
        return len(data)


def make_output_safe() -> None:
    """Closed streams become silent ones; a character that a locale cannot print is shown as an escape."""
    sys.stdout = _safe(sys.stdout, _Result, own=sys.stdout is sys.__stdout__)
    sys.stderr = _safe(sys.stderr, _Beside, own=sys.stderr is sys.__stderr__)


def discard_output() -> None:
    """Nobody can take the rest of the output: Python must not complain about it at exit either."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _safe(stream: TextIO | None, kind: type[io.FileIO], *, own: bool) -> TextIO:
    if stream is None:
        return open(os.devnull, "w")  # noqa: PTH123
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    if not own:  # somebody else's, who put it there to read it
        stream.reconfigure(errors="backslashreplace")
        return stream
    raw = kind(stream.fileno(), "wb", closefd=False)
    return io.TextIOWrapper(
        # As Python makes them: unbuffered with -u.
        raw if stream.write_through else io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
