"""The few calls of Linux that Python 3.11 does not offer, with their errors as OSError."""

import ctypes
import errno
import functools
import os
import sys

CLONE_NEWNS = 0x0002_0000
CLONE_NEWUSER = 0x1000_0000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18

MNT_DETACH = 2

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def unshare(flags: int) -> None:
    """Give this process namespaces of its own. It must have one thread only."""
    _check(_libc().unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """Mount `source` on `target`; the meaning of the rest is that of mount(2)."""
    result = _libc().mount(
        _encoded(source), os.fsencode(target), _encoded(kind), ctypes.c_ulong(flags), _encoded(data)
    )
    _check(result, f"mount on {target}")


def unmount(target: str, flags: int = MNT_DETACH) -> None:
    """Take away what is mounted on `target`; by default even while it is in use."""
    _check(_libc().umount2(os.fsencode(target), ctypes.c_int(flags)), f"unmount {target}")


def become_subreaper() -> None:
    """Orphans among our descendants become our children instead of init's."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(signal_number: int) -> None:
    """Receive this signal when the thread that forked us ends."""
    _prctl(PR_SET_PDEATHSIG, signal_number)


def _prctl(option: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    result = _libc().prctl(ctypes.c_int(option), ctypes.c_ulong(value), zero, zero, zero)
    _check(result, f"prctl {option}")


@functools.cache
def _libc() -> ctypes.CDLL:
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, "only Linux has this call")
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else os.fsencode(text)
