"""Torch's own snapshot of its allocator in a file that stays small enough to be looked at."""

import contextlib
import pickle
from pathlib import Path
from typing import Any, BinaryIO

# The latest that torch's viewer reads.
_PROTOCOL = 4
_MOST_BYTES = 200 << 20


class _TooLarge(Exception):
    """More than anybody would look at."""


class _Bounded:
    """A file that takes so many bytes, and no more."""

    def __init__(self, file: BinaryIO, most_bytes: int) -> None:
        self._file = file
        self._left = most_bytes

    def write(self, data: Any) -> int:
        """As files do."""
        size = memoryview(data).nbytes
        self._left -= size
        if self._left < 0:
            raise _TooLarge
        self._file.write(data)
        return size


def keep_snapshot(snapshot: dict[str, Any], path: Path, *, most_bytes: int = _MOST_BYTES) -> bool:
    """Write it, in place of an earlier one; False, and no file at all, where it would be larger."""
    part = path.with_suffix(".part")
    try:
        with part.open("wb") as file:
            pickle.dump(snapshot, _Bounded(file, most_bytes), protocol=_PROTOCOL)
        part.rename(path)
    except _TooLarge:
        path.unlink(missing_ok=True)
        return False
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
    return True
