"""Copy-on-write files inside one Python process, for kernels that offer no overlay file system.

What a trial writes outside the allowed folders goes to a shadow folder, and is found there again by whoever
reads, stats or lists; what it deletes is remembered as gone. All state is in the shadow folder, so that the
processes of a trial (ranks, spawned workers) see the same files:

    <shadow>/
      files/<path>     what was written, under the path that it was written to
      gone/<path>      a folder with the sticky bit: the real file or folder of that path is gone
      work/            copies under way
      generation       grows by a byte whenever a folder changes: readers know whether to look at all

Two nets hang below each other: functions are replaced, and an audit hook sees what slips past them. Neither
sees what C code or another program writes on its own; libraries known to do so are listed in `_C_FILES`.
"""

import _io
import contextlib
import enum
import errno
import functools
import importlib
import os
import posix
import re
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, NoReturn, ParamSpec, TypeVar

from flatout.inside.imports import after_import
from flatout.records.session import SESSION_VARIABLE

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_READING = ("r", "rb", "rt", "br", "tr")
_O_TMPFILE = getattr(os, "O_TMPFILE", 0)
# The kernel's own trees: nothing in them outlives the job.
_KERNEL = ("/dev", "/proc", "/sys")
_KERNEL_PREFIXES = tuple(f"{folder}/" for folder in _KERNEL)
_MAX_LINKS = 40
_CACHED_FOLDERS = 4096
_COPY_BYTES = 1 << 20


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


def _error(number: int, given: object) -> OSError:
    return OSError(number, os.strerror(number), given)


def _lstat(path: str) -> os.stat_result | None:
    try:
        return posix.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _text(path: Any) -> str | None:
    """A path as text; None for a descriptor, and for mistakes, which the real function knows how to name."""
    if isinstance(path, int):
        return None
    try:
        text = path if type(path) is str else os.fsdecode(path)
    except Exception:  # noqa: BLE001 - whatever a user's __fspath__ raises, the real function will raise it
        return None
    return text if text and "\0" not in text else None


def _leads_nowhere(target: str) -> bool:
    return _lstat(target) is None if target.startswith("/") else ":" in target


def _descriptor_path(descriptor: int) -> str:
    """Where an open file or folder is; not a path for pipes and sockets."""
    if sys.platform == "darwin":
        import fcntl

        return os.fsdecode(fcntl.fcntl(descriptor, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0"))
    return posix.readlink(f"/proc/self/fd/{descriptor}")


def _is_folder(place: Place) -> bool:
    return place.found is not None and stat.S_ISDIR(place.found.st_mode)


def _is_real_folder(place: Place) -> bool:
    real = None if place.hidden else _lstat(place.path or "/")
    return real is not None and stat.S_ISDIR(real.st_mode)


def _is_channel(found: os.stat_result | None) -> bool:
    """A pipe, a socket or a terminal: what is written there is gone with its reader, and has no copy."""
    return found is not None and any(
        kind(found.st_mode) for kind in (stat.S_ISFIFO, stat.S_ISSOCK, stat.S_ISCHR)
    )


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
        self._free = frozenset((root, *_KERNEL, *map(os.path.realpath, allowed)))
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
            start = _descriptor_path(dir_fd)
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
            trail = [Place(start, Layer.FREE, _lstat(start), mirrored=False, marked=False)]
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
                    raise _error(errno.ELOOP, path)
                target = posix.readlink(self.physical(here))
                if here.path.startswith("/proc/") and _leads_nowhere(target):
                    return here  # an open pipe or a deleted file: there is no other way to it
                detour = detour or here.layer is Layer.SHADOW
                if target.startswith("/"):
                    trail = [root]
                names.extend(part for part in reversed(target.split("/")) if part not in ("", "."))
                continue
            if names and not stat.S_ISDIR(here.found.st_mode):
                raise _error(errno.ENOTDIR, path)
            trail.append(here)
        return trail[-1]._replace(detour=True) if detour else trail[-1]

    def _step(self, folder: Place, name: str) -> Place:
        path = f"{folder.path}/{name}"
        if folder.layer is Layer.FREE or path in self._free:
            return Place(path, Layer.FREE, _lstat(path), mirrored=False, marked=False)
        # Below a folder that is not in the shadow nothing is, and the same holds for marks.
        found = _lstat(self.files + path) if folder.mirrored else None
        mark = _lstat(self._gone + path) if folder.marked else None
        hidden = folder.hidden or (mark is not None and bool(mark.st_mode & stat.S_ISVTX))
        if found is not None:
            return Place(path, Layer.SHADOW, found, True, mark is not None, hidden)
        found = None if hidden else _lstat(path)
        layer = Layer.MISSING if found is None else Layer.REAL
        return Place(path, layer, found, False, mark is not None, hidden)

    def reading(
        self, path: str, dir_fd: int | None = None, follow: bool = True, *, listing: bool = False
    ) -> Place | None:
        """Where to read; None where the real call, as it was given, does the right thing.

        The way of every file of a data set, so it costs one stat while nothing is redirected, and two after.
        """
        generation = self._count()
        if not generation or path.startswith(_KERNEL_PREFIXES):
            return None
        whole, detour = self.absolute(path, dir_fd)
        head, _, name = whole.rpartition("/")
        if name in ("", ".", "..") or listing:
            place = self.locate(whole, follow)
        else:
            folder = self._folder(head, generation)
            if not (folder.mirrored or folder.marked or folder.hidden or folder.detour or detour):
                # A folder without changes: but a link in it may lead to one that has some.
                found = _lstat(whole) if follow else None
                if found is None or not stat.S_ISLNK(found.st_mode):
                    return None
            place = self._step(folder, name) if _is_folder(folder) else self.locate(whole, follow)
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
            if _is_folder(folder):
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
        if not place.hidden and _is_folder(place) and _lstat(place.path or "/") is not None:
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
            raise _error(errno.ENOENT, given)
        if not stat.S_ISDIR(folder.found.st_mode):
            raise _error(errno.ENOTDIR, given)
        self.may_change(folder, given)
        self._mirror(head)
        return self.files + path

    def may_change(self, folder: Place, given: object) -> None:
        """Ask what the kernel would ask: the folder's copy in the shadow is always ours to change."""
        real = folder.path or "/"
        if not folder.hidden and _lstat(real) is not None and not posix.access(real, os.W_OK | os.X_OK):
            raise _error(errno.EACCES, given)

    @_bookkeeping
    def _mirror(self, path: str) -> None:
        if not path or _lstat(self.files + path) is not None:
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
            raise _error(errno.EPERM, given)
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
        if _is_folder(place):
            for name in self.names(place):
                self.copy_tree_up(self.locate(f"{place.path}/{name}", follow=False), given)

    @_bookkeeping
    def hide(self, place: Place) -> None:
        """Remember that the real file or folder is gone, where there is one to be seen."""
        if place.hidden or _lstat(place.path) is None:
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
            real = _lstat(source)
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
            real = _lstat(source)
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


class Breach(threading.local):
    """Tells of a write that must not be; and steps out of the way of whoever records it, in that thread.

    Recording must work even where the breach is a failure of ours: then the real functions are called.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self.under_way = False

    def __call__(self, what: str) -> NoReturn:
        """Have it recorded, and refuse."""
        self.under_way = True
        try:
            self._tell(what)
        finally:
            self.under_way = False
        raise PermissionError(errno.EPERM, f"a trial may not: {what}")


class _Theirs(Exception):
    """What the real function made of the user's own arguments; goes to the user as it is."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


def _act(real: Callable[..., Any], given: object, *args: Any, **kwargs: Any) -> Any:
    """Call the real function on a path of our choice, and let its errors speak of the path that was given."""
    try:
        return real(*args, **kwargs)
    except OSError as error:
        if given is not None:
            error.filename = given
        raise
    except Exception as error:
        raise _Theirs(error) from error


class _StandIn:
    """In the place of a built-in function: an object, for in a class a function would become a method."""

    def __init__(self, real: Any, call: Callable[..., Any], breach: Breach) -> None:
        self.__name__: str
        functools.update_wrapper(self, real)
        self._real, self._call, self._breach = real, call, breach
        if self.__module__ in ("posix", "_io"):  # pickled by name, and there the name means the real one
            self.__module__ = {"posix": "os", "_io": "io"}[self.__module__]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._call(*args, **kwargs)
        except (OSError, RecursionError):  # a script may run out of stack in here as well as elsewhere
            raise
        except _Theirs as theirs:
            error = theirs.error
        except Exception as unexpected:  # a failure of ours must not pass for protection
            if isinstance(unexpected, TypeError) and not self._accepts(args, kwargs):
                raise
            if self._breach.under_way:
                return self._real(*args, **kwargs)
            self._breach(f"{self.__name__}{args}: {type(unexpected).__name__}: {unexpected}")
        raise error

    def _accepts(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        import inspect

        try:
            inspect.signature(self._call).bind(*args, **kwargs)
        except TypeError:
            return False
        return True

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(self._real, type) and isinstance(instance, self._real)

    def __reduce__(self) -> str:
        return self.__name__

    def __repr__(self) -> str:
        return repr(self._real)


class _Entry:
    """What `os.scandir` yields for a folder that is partly in the shadow."""

    def __init__(self, name: str | bytes, path: str | bytes, whole: str) -> None:
        self.name, self.path, self._whole = name, path, whole

    def __fspath__(self) -> str | bytes:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self._whole, follow_symlinks=follow_symlinks)  # noqa: PTH116 - through our own

    def inode(self) -> int:
        return self.stat(follow_symlinks=False).st_ino

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(stat.S_ISDIR, follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(stat.S_ISREG, follow_symlinks)

    def is_symlink(self) -> bool:
        return self._is(stat.S_ISLNK, False)

    def is_junction(self) -> bool:
        return False

    def _is(self, kind: Callable[[int], bool], follow: bool) -> bool:
        try:
            return kind(self.stat(follow_symlinks=follow).st_mode)
        except FileNotFoundError:
            return False


class _Entries:
    """An iterator that can be closed, as `os.scandir` returns."""

    def __init__(self, entries: list[_Entry]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[_Entry]:
        return self

    def __next__(self) -> _Entry:
        return next(self._entries)

    def __enter__(self) -> "_Entries":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


# How each function of `os` is handled, by what it does to the path that it takes first.
_LOOKING = ("stat", "lstat", "readlink", "statvfs", "pathconf", "getxattr", "listxattr")
_TOUCHING = (
    *("chmod", "lchmod", "chown", "lchown", "utime", "truncate", "chflags", "lchflags"),
    *("setxattr", "removexattr"),
)
_MAKING = ("mkdir", "mkfifo", "mknod")
_ON_THEIR_OWN = (
    *("open", "access", "listdir", "scandir", "chdir", "getcwd", "getcwdb"),
    *("rename", "replace", "link", "symlink", "remove", "unlink", "rmdir"),
)
_NOT_FOLLOWING = ("lstat", "readlink", "lchown", "lchmod", "lchflags")


class _Calls:
    """The functions of `os`, on the view instead of the real files."""

    def __init__(self, view: View, expected: threading.local) -> None:
        self._view, self._expected = view, expected
        self.all: dict[str, Callable[..., Any]] = {name: getattr(self, name) for name in _ON_THEIR_OWN}
        for names, kind in ((_LOOKING, self._looking), (_TOUCHING, self._touching), (_MAKING, self._making)):
            self.all.update({name: kind(getattr(posix, name)) for name in names if hasattr(posix, name)})

    def _looking(self, real: Callable[..., Any]) -> Callable[..., Any]:
        follows = real.__name__ not in _NOT_FOLLOWING

        def look(path: Any, *args: Any, dir_fd: int | None = None, **kwargs: Any) -> Any:
            place = self._read(path, dir_fd, follows and kwargs.get("follow_symlinks", True))
            if place is None:
                if dir_fd is not None:
                    kwargs["dir_fd"] = dir_fd
                return _act(real, path, path, *args, **kwargs)
            return _act(real, path, self._there(place, path), *args, **kwargs)

        return look

    def _touching(self, real: Callable[..., Any]) -> Callable[..., Any]:
        follows = real.__name__ not in _NOT_FOLLOWING

        def touch(path: Any, *args: Any, dir_fd: int | None = None, **kwargs: Any) -> Any:
            follow = follows and kwargs.get("follow_symlinks", True)
            place = self._write(path, dir_fd, follow)
            if place is None:
                return _act(real, path, path, *args, **kwargs)
            if place.found is None:
                raise _error(errno.ENOENT, path)
            there = place.path if place.layer is Layer.FREE else self._view.copy_up(place, path)
            # The audit event does not say that a link itself is meant, not what it leads to.
            self._expected.path = None if follow else there
            try:
                return _act(real, path, there, *args, **kwargs)
            finally:
                self._expected.path = None

        return touch

    def _making(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def make(path: Any, *args: Any, dir_fd: int | None = None, **kwargs: Any) -> Any:
            text = _text(path)
            if text is None:
                return _act(real, path, path, *args, **kwargs)
            self._create(real, text.rstrip("/") or "/", path, dir_fd, *args, **kwargs)
            return None

        return make

    def _create(
        self,
        real: Callable[..., Any],
        text: str,
        given: object,
        dir_fd: int | None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Make something new at a path where nothing is."""
        place = self._view.writing(text, dir_fd, follow=False)
        if place.layer is Layer.FREE:
            _act(real, given, place.path, *args, **kwargs)
            return
        if place.layer is not Layer.MISSING:
            raise _error(errno.EEXIST, given)
        _act(real, given, self._view.room_for(place.path, given), *args, **kwargs)
        self._view.changed()

    def _read(
        self, path: Any, dir_fd: int | None, follow: bool = True, *, listing: bool = False
    ) -> Place | None:
        text = _text(path)
        try:
            place = text and self._view.reading(text, dir_fd, follow, listing=listing)
        except OSError as error:
            error.filename = path
            raise
        if not place:
            return None
        if place.layer is Layer.MISSING:
            raise _error(errno.ENOENT, path)
        return place

    def _write(self, path: Any, dir_fd: int | None, follow: bool = True) -> Place | None:
        text = _text(path)
        try:
            return None if text is None else self._view.writing(text, dir_fd, follow)
        except OSError as error:
            error.filename = path
            raise

    def _there(self, place: Place, given: Any) -> str | bytes:
        """The kernel's path, as text or bytes like the given one: answers follow the kind of the question."""
        path = self._view.physical(place)
        return os.fsencode(path) if isinstance(os.fspath(given), bytes) else path

    def where_to_read(self, path: Any) -> str | None:
        """The kernel's path of a file to read; None where it is the given one."""
        place = self._read(path, None)
        return None if place is None else self._view.physical(place)

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> Any:
        if not isinstance(flags, int) or not flags & _WRITING:
            follow = not (isinstance(flags, int) and flags & os.O_NOFOLLOW)
            place = self._read(path, dir_fd, follow)
            if place is None:
                return _act(posix.open, path, path, flags, mode, dir_fd=dir_fd)
            return _act(posix.open, path, self._view.physical(place), flags, mode)
        fresh = flags & os.O_CREAT and flags & os.O_EXCL
        place = self._write(path, dir_fd, follow=not (fresh or flags & os.O_NOFOLLOW))
        if place is None:
            return _act(posix.open, path, path, flags, mode, dir_fd=dir_fd)
        if place.layer is Layer.FREE or _is_channel(place.found):
            return _act(posix.open, path, place.path, flags, mode)
        return _act(posix.open, path, self.where_to_write(place, path, flags), flags, mode)

    def where_to_write(self, place: Place, given: object, flags: int) -> str:
        """Where in the shadow to open a file for writing, made ready for it."""
        view = self._view
        if _O_TMPFILE and flags & _O_TMPFILE == _O_TMPFILE:
            return view.copy_up(place, given)  # a nameless file in a folder
        if place.found is None:
            if not flags & os.O_CREAT:
                raise _error(errno.ENOENT, given)
            return view.room_for(place.path, given)
        if flags & os.O_CREAT and flags & os.O_EXCL:
            raise _error(errno.EEXIST, given)
        if stat.S_ISDIR(place.found.st_mode):
            raise _error(errno.EISDIR, given)
        if place.layer is Layer.SHADOW:
            return view.physical(place)
        if not flags & (os.O_WRONLY | os.O_RDWR | os.O_TRUNC):
            return place.path  # O_CREAT or O_APPEND without a wish to write, of a file that is there
        if not posix.access(place.path, os.W_OK):
            raise _error(errno.EACCES, given)
        return view.copy_up(place, given, content=not flags & os.O_TRUNC)

    def access(
        self, path: Any, mode: int, *, dir_fd: int | None = None, effective_ids: bool = False, **kwargs: Any
    ) -> Any:
        if effective_ids:
            kwargs["effective_ids"] = True  # not every system takes it
        try:
            place = self._read(path, dir_fd, kwargs.get("follow_symlinks", True))
        except OSError:
            return False
        if place is None:
            return _act(posix.access, path, path, mode, dir_fd=dir_fd, **kwargs)
        allowed = _act(posix.access, path, self._view.physical(place), mode, **kwargs)
        if allowed and place.layer is Layer.SHADOW and _is_real_folder(place):
            return _act(posix.access, path, place.path, mode, **kwargs)  # its copy may be written in any case
        return allowed

    def _listed(self, path: Any) -> Place | None:
        if isinstance(path, int):
            try:
                path = _descriptor_path(path)
            except OSError:
                return None
        place = self._read("." if path is None else path, None, listing=True)
        if place is not None and place.found is not None and not stat.S_ISDIR(place.found.st_mode):
            raise _error(errno.ENOTDIR, path)
        return place

    def listdir(self, path: Any = None) -> Any:
        place = self._listed(path)
        if place is None:
            return _act(posix.listdir, path, path)
        names = self._view.names(place)
        return [os.fsencode(name) for name in names] if _is_bytes(path) else names

    def scandir(self, path: Any = None) -> Any:
        place = self._listed(path)
        if place is None:
            return _act(posix.scandir, path, path)
        entries = []
        for name in self._view.names(place):
            shown = name if isinstance(path, int) else os.path.join(_text(path) or ".", name)  # noqa: PTH118
            whole = f"{place.path}/{name}"
            if _is_bytes(path):
                entries.append(_Entry(os.fsencode(name), os.fsencode(shown), whole))
            else:
                entries.append(_Entry(name, shown, whole))
        return _Entries(entries)

    def chdir(self, path: Any) -> None:
        place = self._read(path, None)
        if place is None:
            _act(posix.chdir, path, path)
        else:
            # The real folder where there is one: programs that the script starts find its files there.
            _act(posix.chdir, path, place.path if _is_real_folder(place) else self._view.physical(place))

    def getcwd(self) -> str:
        return self._view.absolute(posix.getcwd())[0] or "/"

    def getcwdb(self) -> bytes:
        return os.fsencode(self.getcwd())

    def rename(
        self, src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
    ) -> None:
        if _text(src) is None or _text(dst) is None:
            _act(posix.rename, src, src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
            return
        source = self._named(src, src_dir_fd)
        target = self._named(dst, dst_dir_fd)
        if source.layer is Layer.FREE and target.layer is Layer.FREE:
            _act(posix.rename, src, source.path, target.path)
            return
        wrong = self._rename_error(source, target)
        if wrong:
            raise OSError(wrong, os.strerror(wrong), src, None, dst)
        if source.path != target.path:
            self._rename(source, target, src, dst)

    replace = rename

    def _rename(self, source: Place, target: Place, src: object, dst: object) -> None:
        view = self._view
        where = target.path if target.layer is Layer.FREE else view.room_for(target.path, dst)
        origin = source.path
        if source.layer is not Layer.FREE:
            view.may_change(view.locate(source.path.rpartition("/")[0] or "/"), src)
            view.copy_tree_up(source, src)
            view.hide(source)  # not seen yet: the copy stands before it until it is moved
            origin = view.files + source.path
        if target.layer is Layer.SHADOW and _is_folder(target):
            posix.rmdir(where)
        view.move(origin, where, src)
        view.changed()

    def _rename_error(self, source: Place, target: Place) -> int:
        """What the kernel would object to, in its order."""
        folder = self._view.locate(target.path.rpartition("/")[0] or "/")
        if source.found is None or folder.found is None:
            return errno.ENOENT
        if target.path.startswith(f"{source.path}/"):
            return errno.EINVAL
        if source.path.startswith(f"{target.path}/"):
            return errno.ENOTEMPTY
        if target.found is None:
            return 0
        if _is_folder(source) != _is_folder(target):
            return errno.EISDIR if _is_folder(target) else errno.ENOTDIR
        if _is_folder(target) and source.path != target.path and self._view.names(target):
            return errno.ENOTEMPTY
        return 0

    def _named(self, path: Any, dir_fd: int | None) -> Place:
        """The name itself, not what a link behind it leads to."""
        place = self._write((_text(path) or "").rstrip("/") or "/", dir_fd, follow=False)
        if place is None:
            raise _error(errno.ENOENT, path)
        return place

    def link(
        self,
        src: Any,
        dst: Any,
        *,
        src_dir_fd: int | None = None,
        dst_dir_fd: int | None = None,
        follow_symlinks: bool = True,
    ) -> None:
        if _text(src) is None or _text(dst) is None:
            _act(posix.link, src, src, dst)
            return
        # link(2) follows on macOS alone.
        source = self._write(src, src_dir_fd, follow=follow_symlinks and sys.platform == "darwin")
        target = self._named(dst, dst_dir_fd)
        if source is None or source.found is None:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), src, None, dst)
        if target.found is not None:
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), src, None, dst)
        if _is_folder(source):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM), src, None, dst)
        where = target.path if target.layer is Layer.FREE else self._view.room_for(target.path, dst)
        origin = source.path if source.layer is Layer.FREE else self._view.copy_up(source, src)
        _act(self._view.link, src, origin, where, src)
        self._view.changed()

    def symlink(
        self, src: Any, dst: Any, target_is_directory: bool = False, *, dir_fd: int | None = None
    ) -> None:
        text = _text(dst)
        if text is None or _text(src) is None:
            _act(posix.symlink, src, src, dst, target_is_directory, dir_fd=dir_fd)
            return
        self._create(lambda path: posix.symlink(os.fsdecode(src), path), text, dst, dir_fd)

    def remove(self, path: Any, *, dir_fd: int | None = None) -> None:
        if _text(path) is None:
            _act(posix.remove, path, path)
            return
        place = self._named(path, dir_fd)
        if place.layer is Layer.FREE:
            _act(posix.remove, path, place.path)
            return
        if _is_folder(place):
            raise _error(errno.EPERM if sys.platform == "darwin" else errno.EISDIR, path)
        self._drop(place, path, posix.unlink)

    unlink = remove

    def rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        if _text(path) is None:
            _act(posix.rmdir, path, path)
            return
        place = self._named(path, dir_fd)
        if place.layer is Layer.FREE:
            _act(posix.rmdir, path, place.path)
            return
        if place.found is not None and not _is_folder(place):
            raise _error(errno.ENOTDIR, path)
        if place.found is not None and self._view.names(place):
            raise _error(errno.ENOTEMPTY, path)
        self._drop(place, path, posix.rmdir)

    def _drop(self, place: Place, given: object, real: Callable[[str], None]) -> None:
        if place.found is None:
            raise _error(errno.ENOENT, given)
        self._view.may_change(self._view.locate(place.path.rpartition("/")[0] or "/"), given)
        self._view.hide(place)
        if place.layer is Layer.SHADOW:
            _act(real, given, self._view.physical(place))
        self._view.changed()


def _is_bytes(path: Any) -> bool:
    return not isinstance(path, int | None) and isinstance(os.fspath(path), bytes)


class Tripwire:
    """The audit hook: sees what reached the kernel by a way that we have not replaced, before it happens.

    It does not look at the events of `shutil` and `tempfile`: those name the script's paths, and what the
    functions then do to files comes here again, redirected or not.
    """

    def __init__(self, view: View, breach: Breach, on_program: Callable[[str], None]) -> None:
        self._view, self._breach, self._on_program = view, breach, on_program
        self._programs: set[str] = set()
        # The path that the next event of this thread may name, though it looks like one of the user's.
        self.expected = threading.local()
        self._checks: dict[str, Callable[[tuple[Any, ...]], Iterator[tuple[Any, int, bool]]]] = {
            "os.remove": lambda args: iter([(args[0], args[1], False)]),
            "os.rmdir": lambda args: iter([(args[0], args[1], False)]),
            "os.mkdir": lambda args: iter([(args[0], args[2], False)]),
            "os.rename": lambda args: iter([(args[0], args[2], False), (args[1], args[3], False)]),
            "os.link": lambda args: iter([(args[1], args[3], False)]),
            "os.symlink": lambda args: iter([(args[1], args[2], False)]),
            "os.truncate": lambda args: iter([(args[0], -1, True)]),
            "os.chmod": lambda args: iter([(args[0], args[2], True)]),
            "os.chown": lambda args: iter([(args[0], args[3], True)]),
            "os.utime": lambda args: iter([(args[0], args[3], True)]),
            "os.setxattr": lambda args: iter([(args[0], -1, True)]),
            "os.removexattr": lambda args: iter([(args[0], -1, True)]),
            "os.chflags": lambda args: iter([(args[0], -1, True)]),
            "sqlite3.connect": _opened_database,
            "socket.bind": lambda args: iter([(args[1], -1, False)] if _is_path(args[1]) else []),
            "open": self._opened,
        }

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        """Called for every event of the interpreter: most cost one look-up."""
        check = self._checks.get(event)
        if check is not None and not self._breach.under_way:
            try:
                outside = [
                    path for path, dir_fd, follow in check(args) if self._is_outside(path, dir_fd, follow)
                ]
            except RecursionError:
                raise
            except Exception as error:  # noqa: BLE001 - what cannot be judged is not let through
                self._breach(f"{event}{args}: {type(error).__name__}: {error}")
            if outside:
                self._breach(f"{event} of {outside[0]!r}, past the redirection")
        elif event in _STARTING:
            self._started(*_STARTING[event](args))

    def _opened(self, args: tuple[Any, ...]) -> Iterator[tuple[Any, int, bool]]:
        path, _, flags = args
        is_path = isinstance(path, str | bytes | os.PathLike)
        if is_path and isinstance(flags, int) and flags & _WRITING:
            yield os.fspath(path), -1, True

    def _is_outside(self, path: Any, dir_fd: int, follow: bool) -> bool:
        """Whether a change of this path would change a file of the user's."""
        if getattr(self.expected, "path", None) == path:
            self.expected.path = None
            return False
        try:
            if isinstance(path, int):
                text = _descriptor_path(path)
                if not text.startswith("/"):
                    return False
            else:
                text = os.fsdecode(path)
            if not text.startswith("/"):
                text = f"{posix.getcwd() if dir_fd == -1 else _descriptor_path(dir_fd)}/{text}"
            place = self._view.locate(text, follow, bare=True)
        except OSError:
            return False  # the kernel will refuse as well
        return place.layer is not Layer.FREE and not _is_channel(place.found)

    def _started(self, program: Any, words: Sequence[Any], environment: Mapping[Any, Any] | None) -> None:
        """Say, once, that a program runs whose writes we cannot see. Nothing is ended for that."""
        try:
            name = _unseen_program(os.fsdecode(program), [os.fsdecode(word) for word in words], environment)
        except Exception as error:  # noqa: BLE001 - an unusual command line is no breach
            name = f"{program!r} ({type(error).__name__})"
        if name is not None and name not in self._programs:
            self._programs.add(name)
            self._on_program(name)


def _is_path(address: Any) -> bool:
    return isinstance(address, str | bytes) and os.fsencode(address)[:1] not in (b"", b"\0")


def _opened_database(args: tuple[Any, ...]) -> Iterator[tuple[Any, int, bool]]:
    name = os.fsdecode(args[0])
    path = _database_path(name) if name.startswith("file:") else name
    if path not in ("", ":memory:", None):
        yield path, -1, True


def _database_path(uri: str) -> str | None:
    """The path of sqlite's `file:` URI; None for a database in memory."""
    from urllib.parse import unquote

    body, _, query = uri.removeprefix("file:").partition("?")
    if "mode=memory" in query or body.startswith(":memory:"):
        return None
    if body.startswith("//"):
        body = "/" + body[2:].partition("/")[2]
    return unquote(body.partition("#")[0])


# Program, words and environment, as each way of starting a program tells them.
_STARTING: dict[str, Callable[[tuple[Any, ...]], tuple[Any, Sequence[Any], Mapping[Any, Any] | None]]] = {
    "subprocess.Popen": lambda args: (args[0], _words(args[1]), args[3]),
    "os.exec": lambda args: (args[0], args[1], args[2]),
    "os.posix_spawn": lambda args: (args[0], args[1], args[2]),
    "os.system": lambda args: ("sh", ("sh", "-c", args[0]), None),
    "pty.spawn": lambda args: (_words(args[0])[0], _words(args[0]), None),
}
_SHELLS = ("sh", "bash", "dash", "zsh", "ksh")
_PYTHON = re.compile(r"(python|pypy)[\d.]*t?$")


def _words(command: Any) -> Sequence[Any]:
    return [command] if isinstance(command, str | bytes) or hasattr(command, "__fspath__") else list(command)


def _unseen_program(program: str, words: list[str], environment: Mapping[Any, Any] | None) -> str | None:
    """The program's name, unless it is a Python that this redirection will be in as well."""
    name = os.path.basename(program)  # noqa: PTH119
    if name in _SHELLS and "-c" in words[:-1]:
        command = words[words.index("-c") + 1].split()
        first = os.path.basename(command[0]) if command else name  # noqa: PTH119
        return name if _PYTHON.match(first) else first
    if not (_PYTHON.match(name) or _is_python_script(program)):
        return name
    if environment is not None and SESSION_VARIABLE in os.environ:
        given = {os.fsdecode(key) for key in environment}
        if SESSION_VARIABLE not in given:
            return f"{name} (without our environment)"
    for word in words[1:]:
        if not word.startswith("-") or word in ("-c", "-m", "-"):
            return None
        if not word.startswith("--") and set("SIE") & set(word):  # no site, no sitecustomize, no PYTHONPATH
            return f"{name} {word}"
    return None


def _is_python_script(program: str) -> bool:
    """Whether a program such as torchrun is a script for Python."""
    folders = [""] if "/" in program else os.environ.get("PATH", "").split(os.pathsep)
    for folder in folders:
        path = f"{folder}/{program}" if folder else program
        try:
            script = posix.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            return re.match(rb"#!.*python", posix.read(script, 256)) is not None
        except OSError:
            return False
        finally:
            posix.close(script)
    return False


class _Files:
    """`open` and its kin: the real ones, with an opener that goes through our `os.open`."""

    def __init__(self, calls: _Calls, expected: threading.local, os_open: Callable[..., int]) -> None:
        self._calls, self._expected, self._os_open = calls, expected, os_open
        self.file_io = self._make_file_io()

    def open(
        self,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Callable[[Any, int], int] | None = None,
    ) -> Any:
        rest = (mode, buffering, encoding, errors, newline, closefd)
        if _text(file) is None or self._as_it_is(file, mode, opener):
            return _act(_io.open, None, file, *rest, opener)
        # The name stays the one that was given, and the opener alone knows better.
        with self._expecting(file):
            return _act(_io.open, None, file, *rest, opener or self._opener)

    def open_code(self, path: str) -> Any:
        place = self._calls.where_to_read(path)
        return _io.open_code(path if place is None else place)

    def create_dynamic(self, spec: Any, *more: Any) -> Any:
        """What loads a compiled module: by the path in its spec."""
        import _imp

        given = spec.origin
        there = None if _text(given) is None else self._calls.where_to_read(given)
        spec.origin = given if there is None else there
        try:
            return _imp.create_dynamic(spec, *more)
        finally:
            spec.origin = given

    def _make_file_io(self) -> type[_io.FileIO]:
        """A class in the place of `io.FileIO`, which some call by themselves."""
        files = self

        class Kind(type):
            def __instancecheck__(cls, instance: object) -> bool:
                return isinstance(instance, _io.FileIO)

            def __subclasscheck__(cls, subclass: type) -> bool:
                return issubclass(subclass, _io.FileIO)

        class FileIO(_io.FileIO, metaclass=Kind):  # type: ignore[metaclass]  # in truth it is `type`
            def __init__(self, file: Any, mode: str = "r", closefd: bool = True, opener: Any = None) -> None:
                if _text(file) is None or files._as_it_is(file, mode, opener):
                    super().__init__(file, mode, closefd, opener)
                    return
                with files._expecting(file):
                    super().__init__(file, mode, closefd, opener or files._opener)

        return FileIO

    def _as_it_is(self, file: Any, mode: Any, opener: Any) -> bool:
        return opener is None and mode in _READING and self._calls.where_to_read(file) is None

    @contextlib.contextmanager
    def _expecting(self, file: Any) -> Iterator[None]:
        # io.open raises its event, with the name that was given, before it asks an opener.
        self._expected.path = os.fspath(file)
        try:
            yield
        finally:
            self._expected.path = None

    def _opener(self, path: Any, flags: int) -> int:
        return self._os_open(path, flags, 0o666)


class CFile(NamedTuple):
    """A function of a library that opens a file in C, by its path, past Python and its audit hooks."""

    module: str
    name: str
    position: int
    keyword: str
    # "r" reads, "w" begins a new file, "a" changes what is there, "d" writes into a folder; or the argument
    # that says which: its position and its name.
    mode: str | tuple[int, str]
    # Without it there would be no protection, so a version that lacks it counts as a breach.
    vital: bool = False


_C_FILES = (
    CFile("torch", "_C.PyTorchFileWriter.__init__", 0, "file_name", "w", vital=True),
    CFile("torch", "_C.PyTorchFileReader.__init__", 0, "name", "r"),
    CFile("torch", "_C.ScriptModule.save", 0, "filename", "w"),
    CFile("torch", "_C.ScriptModule._save_for_mobile", 0, "filename", "w"),
    CFile("torch", "_C.ScriptFunction.save", 0, "filename", "w"),
    CFile("torch", "_C.import_ir_module", 1, "filename", "r"),
    CFile("torch", "_C._load_for_lite_interpreter", 0, "filename", "r"),
    CFile("torch", "_C._autograd._ProfilerResult.save", 0, "path", "w"),
    CFile("torch", "_C._distributed_c10d.FileStore.__init__", 0, "file_name", "a"),
    CFile("torch", "from_file", 0, "filename", (1, "shared")),
    CFile("torch", "UntypedStorage.from_file", 0, "filename", (1, "shared")),
    CFile("torch.profiler.profiler", "_add_execution_trace_observer", 0, "path", "w"),
    CFile("safetensors._safetensors_rust", "serialize_file", 1, "filename", "w", vital=True),
    CFile("safetensors._safetensors_rust", "safe_open", 0, "filename", "r"),
    CFile("tokenizers", "Tokenizer.save", 0, "path", "w"),
    CFile("tokenizers", "Tokenizer.from_file", 0, "path", "r"),
    CFile("tokenizers.models", "Model.save", 0, "folder", "d"),
    CFile("h5py", "File.__init__", 0, "name", (1, "mode")),
    CFile("pyarrow.lib", "memory_map", 0, "path", (1, "mode")),
    CFile("pyarrow.lib", "OSFile", 0, "path", (1, "mode")),
    CFile("pyarrow.lib", "create_memory_map", 0, "path", "w"),
    CFile("pyarrow.parquet.core", "ParquetWriter.__init__", 0, "where", "w"),
    CFile("_ctypes", "dlopen", 0, "name", "r"),
    CFile("cv2", "imwrite", 0, "filename", "w"),
    CFile("cv2", "imread", 0, "filename", "r"),
)


class _Libraries:
    """Translates the paths that libraries hand to C."""

    def __init__(self, view: View, calls: _Calls, breach: Breach) -> None:
        self._view, self._calls, self._breach = view, calls, breach

    def watch(self) -> None:
        """Take each library's functions into hand once it is imported."""
        for module in dict.fromkeys(file.module for file in _C_FILES):
            after_import(module, self._guarded(self._replace))
        after_import("_sqlite3", self._guarded(self._replace_connect))
        after_import("subprocess", self._guarded(self._replace_popen))

    def _guarded(self, function: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
        def callback(module: ModuleType) -> None:
            try:
                function(module)
            except Exception as error:  # noqa: BLE001 - a library left as it was would be a hole
                self._breach(f"{module.__name__} cannot be redirected: {type(error).__name__}: {error}")

        return callback

    def _replace(self, module: ModuleType) -> None:
        import inspect

        for file in _C_FILES:
            if file.module != module.__name__:
                continue
            *owners, name = file.name.split(".")
            owner: Any = module
            for inner in owners:
                owner = getattr(owner, inner, None)
            real = getattr(owner, name, None)
            if real is None:
                if file.vital:
                    raise AttributeError(file.name)
                continue
            if isinstance(owner, ModuleType):
                setattr(owner, name, _StandIn(real, self._wrapped(file, real), self._breach))
            elif inspect.getattr_static(owner, name).__class__.__name__ in _BOUND_TO_NO_INSTANCE:
                setattr(owner, name, staticmethod(self._wrapped(file, real)))
            else:
                setattr(owner, name, self._wrapped(file._replace(position=file.position + 1), real, shift=1))

    def _wrapped(self, file: CFile, real: Callable[..., Any], shift: int = 0) -> Callable[..., Any]:
        @functools.wraps(real)
        def call(*args: Any, **kwargs: Any) -> Any:
            given = args[file.position] if len(args) > file.position else kwargs.get(file.keyword)
            if _text(given) is not None:
                there = self._translated(given, _mode(file.mode, args, kwargs, shift))
                if len(args) > file.position:
                    args = (*args[: file.position], there, *args[file.position + 1 :])
                else:
                    kwargs = {**kwargs, file.keyword: there}
            try:
                return real(*args, **kwargs)
            except Exception as error:
                raise _Theirs(error) from error

        return self._plain(call, real)

    def _plain(self, call: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
        """A function, to be a method or a static method: with the same care as a stand-in."""
        guarded = _StandIn(real, call, self._breach)

        @functools.wraps(real)
        def function(*args: Any, **kwargs: Any) -> Any:
            return guarded(*args, **kwargs)

        return function

    def _translated(self, given: Any, mode: str) -> Any:
        text = _text(given) or ""
        if mode == "r":
            try:
                there = self._calls.where_to_read(given)
            except FileNotFoundError:  # the library is to say so; a bare name may be one of a system library
                there = self._view.files + self._view.absolute(text)[0] if "/" in text else None
            return given if there is None else there
        place = self._view.writing(text)
        if place.layer is Layer.FREE:
            return place.path if place.detour else given
        if mode == "d":
            return self._view.copy_up(place, given)
        flags = os.O_RDWR | os.O_CREAT | (os.O_TRUNC if mode == "w" else 0)
        try:
            return self._calls.where_to_write(place, given, flags)
        except FileNotFoundError:
            # The library is to say in its own words that there is no such folder.
            parent = place.path.rpartition("/")[0] or "/"
            return given if _lstat(parent) is None else self._view.files + place.path

    def _replace_connect(self, module: ModuleType) -> None:
        real = vars(module)["connect"]

        def connect(database: Any, *args: Any, **kwargs: Any) -> Any:
            return _act(real, database, self._database(database, kwargs.get("uri", False)), *args, **kwargs)

        vars(module)["connect"] = _StandIn(real, connect, self._breach)

    def _database(self, given: Any, uri: bool) -> Any:
        """sqlite writes beside its file as well, so a database that is there goes into the shadow whole."""
        text = _text(given)
        path = _database_path(text) if uri and text is not None and text.startswith("file:") else text
        if path in (None, "", ":memory:"):
            return given
        for beside in ("-wal", "-journal", "-shm"):
            other = self._view.writing(f"{path}{beside}")
            if other.layer is Layer.REAL:
                self._view.copy_up(other, given)
        there = self._translated(path, "a")
        if there == path:
            return given
        if path is text:
            return there
        from urllib.parse import quote

        return f"file:{quote(there)}?{str(text).partition('?')[2]}"

    def _replace_popen(self, module: ModuleType) -> None:
        """A program can only be started in a folder that the kernel knows."""
        real = module.Popen.__init__

        @functools.wraps(real)
        def start(popen: Any, *args: Any, **kwargs: Any) -> None:
            cwd = kwargs.get("cwd")
            text = _text(cwd)
            place = None if text is None else self._view.reading(text)
            if place is not None and place.found is not None and not _is_real_folder(place):
                kwargs["cwd"] = self._view.physical(place)
            real(popen, *args, **kwargs)

        module.Popen.__init__ = start


_BOUND_TO_NO_INSTANCE = (
    "staticmethod",
    "classmethod",
    "builtin_function_or_method",
    "classmethod_descriptor",
)


def _mode(mode: str | tuple[int, str], args: tuple[Any, ...], kwargs: Mapping[str, Any], shift: int) -> str:
    if isinstance(mode, str):
        return mode
    position, keyword = mode[0] + shift, mode[1]
    value = args[position] if len(args) > position else kwargs.get(keyword)
    if value in (None, False, "r", "rb"):
        return "r"
    return "w" if isinstance(value, str) and value[0] in "wx" else "a"


def _rebind(replaced: Mapping[int, Any]) -> None:
    """Put our functions wherever a module, or a class in it, holds the real one: `os` and `io`, and whoever
    took them from there before we came."""
    for name, module in list(sys.modules.items()):
        if name in ("posix", "_io") or name.startswith("flatout."):
            continue
        known = getattr(module, "__dict__", {})
        for owner in [module, *(value for value in known.values() if isinstance(value, type))]:
            for key, value in list(vars(owner).items()):
                real = value.__func__ if isinstance(value, staticmethod) else value
                if id(real) in replaced and getattr(owner, "__module__", name) == name:
                    ours = replaced[id(real)]
                    setattr(owner, key, staticmethod(ours) if isinstance(value, staticmethod) else ours)


def _for_importers(replaced: Mapping[str, Any], files: "_Files") -> None:
    """Modules that the script wrote can be imported, and compiled ones are not left beside the sources."""
    sys.dont_write_bytecode = True
    external: Any = importlib.import_module("importlib._bootstrap_external")
    for name, ours in (
        ("_os", replaced),
        ("_io", {"open_code": files.open_code, "FileIO": files.file_io}),
        ("_imp", {"create_dynamic": files.create_dynamic}),
    ):
        source = vars(external)[name]
        borrowed = ModuleType(source.__name__)
        vars(borrowed).update({**vars(source), **ours})
        vars(external)[name] = borrowed


def install_redirect(
    shadow: Path,
    allowed: Sequence[Path],
    on_breach: Callable[[str], None],
    on_program: Callable[[str], None],
) -> None:
    """Send every write outside `allowed` to `shadow`, in this process and for good.

    `on_breach(what)` is told of a write that slipped past, before it happens, and of any failure in here: it
    is to record it and end the process. Should it return, the write is refused with a PermissionError.
    `on_program(name)` is told once of each program that is started and cannot be seen into.
    The folders in `allowed` must exist.
    """
    if isinstance(os.stat, _StandIn):
        return  # once is for good
    breach = Breach(on_breach)
    view = View(shadow, allowed)
    tripwire = Tripwire(view, breach, on_program)
    calls = _Calls(view, tripwire.expected)
    stand_ins = {name: _StandIn(getattr(posix, name), call, breach) for name, call in calls.all.items()}
    files = _Files(calls, tripwire.expected, stand_ins["open"])
    opener = _StandIn(_io.open, files.open, breach)
    open_code = _StandIn(_io.open_code, files.open_code, breach)
    replaced: dict[int, Any] = {id(getattr(posix, name)): ours for name, ours in stand_ins.items()}
    replaced |= {id(_io.open): opener, id(_io.open_code): open_code, id(_io.FileIO): files.file_io}
    for capable in (
        os.supports_dir_fd,
        os.supports_fd,
        os.supports_follow_symlinks,
        os.supports_effective_ids,
    ):
        capable.update(ours for name, ours in stand_ins.items() if getattr(posix, name) in capable)
    sys.addaudithook(tripwire)
    _rebind(replaced)
    _for_importers(stand_ins, files)
    _Libraries(view, calls, breach).watch()
