"""Where a path leads in the two layers of redirected files, and what can be asked of it."""

import enum
import os
import posix
import stat
import sys
from typing import Any, NamedTuple

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# The kernel's own trees: nothing in them outlives the job.
KERNEL = ("/dev", "/proc", "/sys")
KERNEL_PREFIXES = tuple(f"{folder}/" for folder in KERNEL)


class Layer(enum.Enum):
    """Where a path is to be looked for."""

    REAL = enum.auto()
    SHADOW = enum.auto()
    MISSING = enum.auto()
    FREE = enum.auto()  # in an allowed folder: no business of ours


class Place(NamedTuple):
    """A path with its links followed, and what is there."""

    path: str
    layer: Layer
    found: os.stat_result | None
    # Whether the shadow may hold something below, and whether something below may be marked as gone.
    mirrored: bool = True
    marked: bool = True
    # The real thing at this path is gone, or never was reachable.
    hidden: bool = False
    # The kernel would not come here from the path as it was given.
    detour: bool = False


def os_error(number: int, given: object) -> OSError:
    """The error that the kernel would raise."""
    return OSError(number, os.strerror(number), given)


def lstat_or_none(path: str) -> os.stat_result | None:
    """What is there, a link itself included; None where there is nothing."""
    try:
        return posix.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def as_text(path: Any) -> str | None:
    """A path as text; None for a descriptor, and for mistakes, which the real function knows how to name."""
    if isinstance(path, int):
        return None
    try:
        text = path if type(path) is str else os.fsdecode(path)
    except Exception:  # noqa: BLE001 - whatever a user's __fspath__ raises, the real function will raise it
        return None
    return text if text and "\0" not in text else None


def leads_nowhere(target: str) -> bool:
    """Whether a link of /proc stands for something without a path."""
    return lstat_or_none(target) is None if target.startswith("/") else ":" in target


def descriptor_path(descriptor: int) -> str:
    """Where an open file or folder is; not a path for pipes and sockets."""
    if sys.platform == "darwin":
        import fcntl

        return os.fsdecode(fcntl.fcntl(descriptor, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0"))
    return posix.readlink(f"/proc/self/fd/{descriptor}")


def is_folder(place: Place) -> bool:
    """Whether a folder was found."""
    return place.found is not None and stat.S_ISDIR(place.found.st_mode)


def is_real_folder(place: Place) -> bool:
    """Whether the real files have a folder there, and it is not gone."""
    real = None if place.hidden else lstat_or_none(place.path or "/")
    return real is not None and stat.S_ISDIR(real.st_mode)


def is_channel(found: os.stat_result | None) -> bool:
    """A pipe, a socket or a terminal: what is written there is gone with its reader, and has no copy."""
    return found is not None and any(
        kind(found.st_mode) for kind in (stat.S_ISFIFO, stat.S_ISSOCK, stat.S_ISCHR)
    )


def is_bytes(path: Any) -> bool:
    """Whether a path was given as bytes."""
    return not isinstance(path, int | None) and isinstance(os.fspath(path), bytes)


def database_path(uri: str) -> str | None:
    """The path of sqlite's `file:` URI; None for a database in memory."""
    from urllib.parse import unquote

    body, _, query = uri.removeprefix("file:").partition("?")
    if "mode=memory" in query or body.startswith(":memory:"):
        return None
    if body.startswith("//"):
        body = "/" + body[2:].partition("/")[2]
    return unquote(body.partition("#")[0])
