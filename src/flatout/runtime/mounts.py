"""What is mounted, and which places hold files that a job could change."""

import contextlib
import dataclasses
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

# Devices, kernel state and shared memory: an overlay would break them, and they hold no files to protect.
LEFT_ALONE = ("/proc", "/sys", "/dev")

# File systems in which the kernel or a daemon speaks; every other kind is taken to hold files.
_NOT_FOR_FILES = frozenset(
    """autofs binfmt_misc bpf cgroup cgroup2 configfs debugfs devpts devtmpfs efivarfs fuse.gvfsd-fuse
    fuse.lxcfs fuse.portal fusectl hugetlbfs mqueue nsfs proc pstore rpc_pipefs securityfs selinuxfs
    sysfs tracefs""".split()  # noqa: SIM905 -- one a line would fill the page
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mount:
    """A line of /proc/self/mountinfo."""

    id: int
    path: str
    kind: str
    writable: bool

    @property
    def holds_files(self) -> bool:
        """Whether a job could change something here that must not change."""
        return self.writable and self.kind not in _NOT_FOR_FILES


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """A folder or file, held open from before anything covered its path."""

    path: str
    descriptor: int
    is_folder: bool
    holds_files: bool

    @property
    def real(self) -> str:
        """A path to it that nothing can cover."""
        return f"/proc/self/fd/{self.descriptor}"


def read_mounts() -> list[Mount]:
    """Everything that is mounted in this process's namespace."""
    # Bytes outside the encoding are possible in a path.
    text = os.fsdecode(Path("/proc/self/mountinfo").read_bytes())
    return [_parsed(line) for line in text.split("\n") if line]


def survey(mounts: list[Mount]) -> list[Place]:
    """The places to protect or to show again, parents first: the folders of /, and what is mounted below.

    What this user cannot reach is left out. Close each descriptor when done.
    """
    places = [*_folders_of_root(mounts), *_mounted(mounts)]
    return sorted(places, key=lambda place: place.path.split("/"))


def open_place(shown: str, *, holds_files: bool, path: str = "") -> Place | None:
    """Hold what `shown` shows now, as the place at `path`; None where it cannot be reached."""
    try:
        # Not O_DIRECTORY: it would make an automounter act.
        descriptor = os.open(shown, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return None
    is_folder = True
    # Another user's FUSE mount refuses this even to root; its root is a folder.
    with contextlib.suppress(OSError):
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
    return Place(path=path or shown, descriptor=descriptor, is_folder=is_folder, holds_files=holds_files)


def folders_in(folder: Place) -> Iterator[Place]:
    """The folders in a place that are on the same mount and that this user can enter."""
    own = mount_id(folder)
    try:
        with os.scandir(folder.real) as entries:
            found = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for entry in sorted(found, key=lambda entry: entry.name):
        path = f"{folder.path.rstrip('/')}/{entry.name}"
        part = open_place(entry.path, path=path, holds_files=True) if os.access(entry.path, os.X_OK) else None
        if part is not None and mount_id(part) == own:
            yield part
        elif part is not None:
            os.close(part.descriptor)


def mount_id(place: Place) -> int:
    """The id, as in `Mount.id`, of the mount through which a place was opened."""
    lines = Path(f"/proc/self/fdinfo/{place.descriptor}").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("mnt_id:"))


def is_within(path: str, folder: str) -> bool:
    """Whether `path` is `folder` or lies in it; both absolute and without links."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _folders_of_root(mounts: list[Mount]) -> Iterator[Place]:
    root = open_place("/", holds_files=True)
    assert root is not None, "/ can be opened"
    if any(mount.path == "/" and mount.holds_files for mount in mounts):
        for place in folders_in(root):
            if place.path in LEFT_ALONE:
                os.close(place.descriptor)
            else:
                yield place
    os.close(root.descriptor)


def _mounted(mounts: list[Mount]) -> Iterator[Place]:
    by_id = {mount.id: mount for mount in mounts}
    paths = {mount.path for mount in mounts if mount.path != "/"}
    for path in paths:
        if any(is_within(path, alone) for alone in LEFT_ALONE):
            continue
        place = open_place(path, holds_files=False)
        if place is None:
            continue
        mount = by_id.get(mount_id(place))
        if mount is None or mount.path != path:
            # Something else is mounted over it, or over a parent of it.
            os.close(place.descriptor)
        else:
            yield dataclasses.replace(place, holds_files=mount.holds_files)


def _parsed(line: str) -> Mount:
    fields = line.split(" ")
    rest = fields[fields.index("-", 6) + 1 :]
    writable = "rw" in fields[5].split(",") and "rw" in rest[2].split(",")
    return Mount(id=int(fields[0]), path=_unescaped(fields[4]), kind=rest[0], writable=writable)


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
