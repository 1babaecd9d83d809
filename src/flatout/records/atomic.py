"""Writes a file so that a crash at any instant leaves the old one or the new one, never a part."""

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from flatout.records.errors import CannotWrite

_REMEDY = "free some room or choose a folder that this user may write to"


def write_atomically(path: Path, data: bytes, *, remedy: str = _REMEDY, synced: bool = True) -> None:
    """Write beside `path`, sync, rename over it, sync the folder. A failure leaves no temporary file.

    What is written anew every other second need not be `synced`: a disk has better things to do. A link stays
    one, and what it points to is written; a pipe or a device takes the bytes as they are.
    """
    temporary: Path | None = None
    wanted = path
    try:
        if _is_no_file(path):
            path.write_bytes(data)
            return
        path = Path(os.path.realpath(path))
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        temporary = Path(name)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            if synced:
                os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
        if synced:
            sync_folder(path.parent)
    except BaseException as error:  # an interrupt must not leave a temporary file either
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise CannotWrite(wanted, error, remedy=remedy) from error
        raise


def _is_no_file(path: Path) -> bool:
    """Whether it is a pipe, a device or the like, in whose place no file may be put."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def ensure_writable(folder: Path, *, remedy: str) -> None:
    """Find out now, before an hour of work, whether results can be kept in `folder`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise CannotWrite(folder, error, remedy=remedy) from error


def ensure_place(path: Path, *, remedy: str) -> None:
    """The same for a file that is to be written in the end, in a folder that exists."""
    if not _is_no_file(path):
        ensure_writable(Path(os.path.realpath(path)).parent, remedy=remedy)


def sync_folder(folder: Path) -> None:
    """Names in this folder are on the disk when this returns."""
    # Some network disks cannot sync a folder, and some folders may be written but not read: the file itself
    # is synced and in its place, so this is no failure.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _umask() -> int:
    # mkstemp's 0600 would hide run folders from a team.
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("Umask:")).split()[1], 8)
    # Elsewhere the only way to read it is to set it, for a moment and for what other threads start then.
    mask = os.umask(0)
    os.umask(mask)
    return mask
