"""A mount namespace of our own: what is mounted in it, nobody else sees."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from flatout.runtime import linux

# The inode number that the kernel gives to the first user namespace (PROC_USER_INIT_INO).
_FIRST_USER_NAMESPACE = 0xEFFFFFFD


def enter() -> bool:
    """Move this process, which must have one thread, into a mount namespace of its own.

    Returns whether that is in a user namespace, where overlays need `userxattr` and files can belong to
    owners who do not exist. Rights that we really have are kept: they reach the files of other users.
    """
    try:
        linux.unshare(linux.CLONE_NEWNS)
    except PermissionError:
        _enter_user_namespace()
    # Without this, what we mount would appear in the namespace that we came from.
    linux.mount(None, "/", None, linux.MS_REC | linux.MS_PRIVATE)
    return Path("/proc/self/ns/user").stat().st_ino != _FIRST_USER_NAMESPACE


def _enter_user_namespace() -> None:
    """Become ourselves in a new user namespace: the job sees the same user and group as outside."""
    user, group = os.getuid(), os.getgid()
    with _identity_writer(user):
        linux.unshare(linux.CLONE_NEWUSER | linux.CLONE_NEWNS)
    if not Path("/proc/self/uid_map").read_text():
        _write("/proc/self/uid_map", f"{user} {user} 1")
    if not Path("/proc/self/gid_map").read_text():
        # The kernel's condition for a group map without privileges.
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/gid_map", f"{group} {group} 1")


@contextlib.contextmanager
def _identity_writer(user: int) -> Iterator[None]:
    """For root, a helper that stays outside and maps every user and group to itself, where that is allowed.

    A process in a new user namespace may map its own id alone; root's other files would belong to nobody.
    """
    if user != 0:
        yield
        return
    ready, go = os.pipe()
    keeper = os.getpid()
    helper = os.fork()
    if helper == 0:
        try:
            os.close(go)
            if os.read(ready, 1):
                for name in ("uid_map", "gid_map"):
                    _write(f"/proc/{keeper}/{name}", _identity(Path("/proc/self", name).read_text()))
        finally:
            os._exit(0)
    os.close(ready)
    try:
        yield
        os.write(go, b"1")
    finally:
        os.close(go)
        os.waitpid(helper, 0)


def _identity(own_map: str) -> str:
    """Maps all that exists in a namespace with this map to itself, in a namespace below it."""
    extents = [line.split() for line in own_map.splitlines()]
    return "\n".join(f"{first} {first} {count}" for first, _, count in extents)


def _write(path: str, text: str) -> None:
    # These files take one write call, whole.
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
