"""The user's files as a trial sees them: the real ones, with those of the shadow folder laid over.

The layout of the shadow folder is in `install.py`.
"""

import contextlib
import errno
import functools
import os
import posix
import stat
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ParamSpec, TypeVar

from flatout.inside.redirect.place import (
    KERNEL,
    KERNEL_PREFIXES,
    Layer,
    Place,
    descriptor_path,
    is_folder,
    leads_nowhere,
    lstat_or_none,
    os_error,
)

_MAX_LINKS = 40
_CACHED_FOLDERS = 4096
_COPY_BYTES = 1 << 20


class ShadowError(Exception):
    """The shadow folder itself cannot be kept: not something that the script should see as its own error."""


_P = ParamSpec("_P")
_R = TypeVar("_R")


def _bookkeeping(method: Callable[_P, _R]) -> Callable[_P, _R]:
    @functools.wraps(method)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return method(*args, **kwargs)
        except OSError as error:
            raise ShadowError(f"the shadow folder: {error}") from error

    return call


class View:
    """The user's files as the trial sees them: real ones, with those of the shadow folder laid over."""

    def __init__(self, shadow: Path, allowed: Sequence[Path]) -> None:
        root = os.path.realpath(shadow)
        self.files, self._gone, self._work = f"{root}/files", f"{root}/gone", f"{root}/work"
        self._generation = f"{root}/generation"
        for folder in (self.files, self._gone, self._work):
            os.makedirs(folder, exist_ok=True)  # noqa: PTH103 - pathlib costs its import at every start
        posix.close(posix.open(self._generation, os.O_WRONLY | os.O_CREAT, 0o600))
        self._free = frozenset((root, *KERNEL, *map(os.path.realpath, allowed)))
        self._free_prefixes = tuple(f"{folder}/" for folder in self._free)
        self._root = Place("", Layer.REAL, posix.lstat("/"))
        # Without its layers: the same walk then goes where the kernel would go.
        self._bare_root = self._root._replace(mirrored=False, marked=False)
        self._folders: tuple[int, dict[str, Place]] = (0, {})
        self._copies = 0

    def absolute(self, path: str, dir_fd: int | None = None) -> tuple[str, bool]:
        """The path from the root, as the script knows it, and whether the kernel knows it otherwise."""
        if path.startswith("/"):
            start = ""
        elif dir_fd is None:
            start = posix.getcwd()
        else:
            start = descriptor_path(dir_fd)
        whole = f"{start}/{path}" if start else path
        if whole.startswith(f"{self.files}/"):
            return whole[len(self.files) :], True
        return whole, dir_fd is not None

    def physical(self, place: Place) -> str:
        """What to hand to the kernel."""
        return self.files + place.path if place.layer is Layer.SHADOW else place.path or "/"

    def locate(self, path: str, follow: bool = True, *, bare: bool = False) -> Place:
        """Walk an absolute path, link by link; `bare` as the kernel would, without the shadow."""
        root = self._bare_root if bare else self._root
        names = [name for name in path.split("/") if name not in ("", ".")][::-1]
        follow = follow or path.endswith(("/", "/."))
        trail, links, detour = [root], 0, False
        if path.startswith(self._free_prefixes) and ".." not in names:
            # Allowed folders are known with their links followed: begin there.
            start = max((free for free in self._free if path.startswith(f"{free}/")), key=len)
            del names[len(names) - start.count("/") :]
            trail = [Place(start, Layer.FREE, lstat_or_none(start), mirrored=False, marked=False)]
        while names:
            name = names.pop()
            if name == "..":
                # The kernel cannot go back out of a folder that it does not know.
                detour = detour or trail[-1].layer is Layer.SHADOW
                above = trail[0].path.rpartition("/")[0]
                trail = trail[:-1] or [self.locate(above, bare=bare) if above else root]
                continue
            here = self._step(trail[-1], name)
            if here.found is None:
                rest = "/".join([here.path, *names[::-1]])
                return here._replace(path=rest, detour=detour, marked=False, mirrored=False)
            if stat.S_ISLNK(here.found.st_mode) and (names or follow):
                links += 1
                if links > _MAX_LINKS:
                    raise os_error(errno.ELOOP, path)
                target = posix.readlink(self.physical(here))
                if here.path.startswith("/proc/") and leads_nowhere(target):
                    return here  # an open pipe or a deleted file: there is no other way to it
                detour = detour or here.layer is Layer.SHADOW
                if target.startswith("/"):
                    trail = [root]
                names.extend(part for part in reversed(target.split("/")) if part not in ("", "."))
                continue
            if names and not stat.S_ISDIR(here.found.st_mode):
                raise os_error(errno.ENOTDIR, path)
            trail.append(here)
        return trail[-1]._replace(detour=True) if detour else trail[-1]

    def _step(self, folder: Place, name: str) -> Place:
        path = f"{folder.path}/{name}"
        if folder.layer is Layer.FREE or path in self._free:
            return Place(path, Layer.FREE, lstat_or_none(path), mirrored=False, marked=False)
        # Below a folder that is not in the shadow nothing is, and the same holds for marks.
        found = lstat_or_none(self.files + path) if folder.mirrored else None
        mark = lstat_or_none(self._gone + path) if folder.marked else None
        hidden = folder.hidden or (mark is not None and bool(mark.st_mode & stat.S_ISVTX))
        if found is not None:
            return Place(path, Layer.SHADOW, found, True, mark is not None, hidden)
        found = None if hidden else lstat_or_none(path)
        layer = Layer.MISSING if found is None else Layer.REAL
        return Place(path, layer, found, False, mark is not None, hidden)

    def reading(
        self, path: str, dir_fd: int | None = None, follow: bool = True, *, listing: bool = False
    ) -> Place | None:
        """Where to read; None where the real call, as it was given, does the right thing.

        The way of every file of a data set, so it costs one stat while nothing is redirected, and two after.
        """
        generation = self._count()
        if not generation or path.startswith(KERNEL_PREFIXES):
            return None
        whole, detour = self.absolute(path, dir_fd)
        head, _, name = whole.rpartition("/")
        if name in ("", ".", "..") or listing:
            place = self.locate(whole, follow)
        else:
            folder = self._folder(head, generation)
            if not (folder.mirrored or folder.marked or folder.hidden or folder.detour or detour):
                # A folder without changes: but a link in it may lead to one that has some.
                found = lstat_or_none(whole) if follow else None
                if found is None or not stat.S_ISLNK(found.st_mode):
                    return None
            place = self._step(folder, name) if is_folder(folder) else self.locate(whole, follow)
            if follow and place.found is not None and stat.S_ISLNK(place.found.st_mode):
                place = self.locate(whole, follow)
            detour = detour or folder.detour
        if detour:
            return place._replace(detour=True)
        changed = listing and (place.mirrored or place.marked) and place.layer is Layer.REAL
        gone = place.layer is Layer.MISSING and place.hidden
        differs = place.layer is Layer.SHADOW or gone or changed or place.detour
        return place if differs else None

    def _count(self) -> int:
        try:
            return posix.stat(self._generation).st_size
        except OSError as error:
            raise ShadowError(f"the shadow folder: {error}") from error

    def _folder(self, path: str, generation: int) -> Place:
        """A folder, remembered until a name comes or goes anywhere in the shadow."""
        known = self._folders
        if known[0] != generation or len(known[1]) > _CACHED_FOLDERS:
            known = self._folders = (generation, {})
        folder = known[1].get(path)
        if folder is None:
            folder = self.locate(path or "/")
            if is_folder(folder):
                known[1][path] = folder
        return folder

    def writing(self, path: str, dir_fd: int | None = None, follow: bool = True) -> Place:
        """Where a write would go; resolved anew each time, for a stale answer could lead to a real file."""
        whole, detour = self.absolute(path, dir_fd)
        place = self.locate(whole, follow)
        return place._replace(detour=True) if detour else place

    def names(self, place: Place) -> list[str]:
        """What a folder holds."""
        seen: dict[str, None] = {}
        if not place.hidden and is_folder(place) and lstat_or_none(place.path or "/") is not None:
            seen = dict.fromkeys(posix.listdir(place.path or "/"))
            if place.marked:
                for name in posix.listdir(self._gone + place.path):
                    if posix.lstat(f"{self._gone}{place.path}/{name}").st_mode & stat.S_ISVTX:
                        seen.pop(name, None)
        if place.layer is Layer.SHADOW:
            seen.update(dict.fromkeys(posix.listdir(self.physical(place))))
        return list(seen)

    def room_for(self, path: str, given: object) -> str:
        """Make the shadow ready to create `path`, its links followed; returns where to create it."""
        head = path.rpartition("/")[0]
        folder = self.locate(head or "/")
        if folder.found is None:
            raise os_error(errno.ENOENT, given)
        if not stat.S_ISDIR(folder.found.st_mode):
            raise os_error(errno.ENOTDIR, given)
        self.may_change(folder, given)
        self._mirror(head)
        return self.files + path

    def may_change(self, folder: Place, given: object) -> None:
        """Ask what the kernel would ask: the folder's copy in the shadow is always ours to change."""
        real = folder.path or "/"
        if (
            not folder.hidden
            and lstat_or_none(real) is not None
            and not posix.access(real, os.W_OK | os.X_OK)
        ):
            raise os_error(errno.EACCES, given)

    @_bookkeeping
    def _mirror(self, path: str) -> None:
        if not path or lstat_or_none(self.files + path) is not None:
            return
        self._mirror(path.rpartition("/")[0])
        real = posix.lstat(path)
        try:
            posix.mkdir(self.files + path, 0o700)
        except FileExistsError:  # another process of the trial was quicker
            return
        self._keep_facts(self.files + path, real, stat.S_IMODE(real.st_mode) | 0o700)
        self.changed()

    @staticmethod
    def _keep_facts(copy: str, real: os.stat_result, mode: int) -> None:
        if os.geteuid() == 0:
            with contextlib.suppress(OSError):  # in a container some owners cannot be given
                posix.chown(copy, real.st_uid, real.st_gid)
        posix.chmod(copy, mode)
        posix.utime(copy, ns=(real.st_atime_ns, real.st_mtime_ns))

    def copy_up(self, place: Place, given: object, *, content: bool = True) -> str:
        """Bring a real file, folder or link into the shadow, and return where it is there."""
        copy, real = self.files + place.path, place.found
        if place.layer is Layer.SHADOW or real is None:
            return copy
        self._mirror(place.path.rpartition("/")[0])
        if stat.S_ISDIR(real.st_mode):
            self._mirror(place.path)
        elif stat.S_ISLNK(real.st_mode):
            self._unless_there(posix.symlink, posix.readlink(place.path), copy)
        elif stat.S_ISREG(real.st_mode):
            self._copy_file(place.path, copy, real, given if content else None)
        else:
            raise os_error(errno.EPERM, given)
        self.changed()
        return copy

    def _copy_file(self, source: str, copy: str, real: os.stat_result, given: object | None) -> None:
        """Make the copy whole before it is seen; without `given`, an empty one."""
        self._copies += 1
        draft = f"{self._work}/{os.getpid()}-{threading.get_ident()}-{self._copies}"
        self._draft(None if given is None else _open_to_read(source, given), draft, real)
        self._unless_there(posix.link, draft, copy)
        posix.unlink(draft)

    @_bookkeeping
    def _draft(self, origin: int | None, draft: str, real: os.stat_result) -> None:
        target = posix.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            if origin is not None:
                _copy_bytes(origin, target)
        finally:
            posix.close(target)
            if origin is not None:
                posix.close(origin)
        self._keep_facts(draft, real, stat.S_IMODE(real.st_mode))

    @staticmethod
    @_bookkeeping
    def _unless_there(make: Callable[[str, str], None], source: str, copy: str) -> None:
        with contextlib.suppress(FileExistsError):  # another process of the trial was quicker
            make(source, copy)

    def copy_tree_up(self, place: Place, given: object) -> None:
        """Bring a folder with everything below it into the shadow."""
        self.copy_up(place, given)
        if is_folder(place):
            for name in self.names(place):
                self.copy_tree_up(self.locate(f"{place.path}/{name}", follow=False), given)

    @_bookkeeping
    def hide(self, place: Place) -> None:
        """Remember that the real file or folder is gone, where there is one to be seen."""
        if place.hidden or lstat_or_none(place.path) is None:
            return
        mark = self._gone
        for name in place.path.split("/")[1:]:
            mark = f"{mark}/{name}"
            try:
                posix.mkdir(mark, 0o700)
            except FileExistsError:
                continue
        posix.chmod(mark, 0o1700)
        self.changed()

    @_bookkeeping
    def changed(self) -> None:
        """Tell every process of the trial that a name came or went."""
        counter = posix.open(self._generation, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            posix.write(counter, b".")
        finally:
            posix.close(counter)

    def move(self, source: str, target: str, given: object) -> None:
        """Rename between the kernel's paths, across file systems too: the shadow may be on another one."""
        try:
            posix.rename(source, target)
        except OSError as error:
            real = lstat_or_none(source)
            if error.errno != errno.EXDEV or real is None or not stat.S_ISREG(real.st_mode):
                raise
            near = f"{target}.{os.getpid()}-{threading.get_ident()}"
            self._draft(_open_to_read(source, given), near, real)
            posix.rename(near, target)
            posix.unlink(source)

    def link(self, source: str, target: str, given: object) -> None:
        """A hard link between the kernel's paths; a copy where they are on two file systems."""
        try:
            posix.link(source, target)
        except OSError as error:
            real = lstat_or_none(source)
            if error.errno != errno.EXDEV or real is None or not stat.S_ISREG(real.st_mode):
                raise
            self._draft(_open_to_read(source, given), target, real)


def _open_to_read(path: str, given: object) -> int:
    try:
        return posix.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        error.filename = given
        raise


def _copy_bytes(origin: int, target: int) -> None:
    while block := posix.read(origin, _COPY_BYTES):
        while block:
            block = block[posix.write(target, block) :]
