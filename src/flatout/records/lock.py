"""One writer a folder: a lock that the kernel takes back when its holder dies, however it dies."""

import contextlib
import fcntl
import json
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path

from flatout.records.errors import CannotWrite, LockHeld

_PATIENCE_S = 0.2
# Descriptors of the locks that this process holds.
_held: set[int] = set()


@contextlib.contextmanager
def folder_lock(folder: Path, *, name: str = "lock") -> Iterator[None]:
    """Hold the lock of `folder`, or raise LockHeld with the name of who does."""
    path = folder / name
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise CannotWrite(path, error, remedy="choose a folder that this user may write to") from error
    _held.add(descriptor)
    try:
        try:
            _take(descriptor)
        except BlockingIOError:
            raise LockHeld(folder, _holder(path)) from None
        except OSError:
            pass  # A disk without locks (some network mounts): the folder's random name must do.
        # The lock is ours already; on a full disk only the name of its holder is lost.
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.write(descriptor, json.dumps({"pid": os.getpid(), "host": platform.node()}).encode())
        yield
    finally:
        if descriptor in _held:
            _held.discard(descriptor)
            os.close(descriptor)


def _take(descriptor: int) -> None:
    """Who only looks whether a lock is held holds it for a moment: that is waited for."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_PATIENCE_S / 20)


def _let_go() -> None:
    """A child that was forked would hold on to the lock after its parent's death."""
    while _held:
        with contextlib.suppress(OSError):
            os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go)


def is_locked(folder: Path, *, name: str = "lock") -> bool | None:
    """Whether a living process holds the lock of `folder`; None where that cannot be known."""
    path = folder / name
    try:
        descriptor = os.open(path, os.O_RDONLY)  # another user's folder may be readable only
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return _is_alive(path)  # a disk without locks
    else:
        return False
    finally:
        os.close(descriptor)


def _is_alive(path: Path) -> bool | None:
    """By the name that the holder left; None where there is none, or it is of another machine."""
    said = _named(path)
    if said is None or said[1] != platform.node():
        return None
    try:
        os.kill(said[0], 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # another user's
    return True


def _holder(path: Path) -> str:
    said = _named(path)
    return f"process {said[0]} on {said[1]}" if said is not None else "another process"


def _named(path: Path) -> tuple[int, str] | None:
    try:
        said = json.loads(path.read_bytes())
        return int(said["pid"]), str(said["host"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
