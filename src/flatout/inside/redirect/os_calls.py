"""The functions of `os`, on the redirected files."""

import errno
import os
import posix
import stat
import sys
import threading
from collections.abc import Callable
from typing import Any

from flatout.inside.redirect.entries import Entries, Entry
from flatout.inside.redirect.place import (
    WRITING,
    Layer,
    Place,
    as_text,
    descriptor_path,
    is_bytes,
    is_channel,
    is_folder,
    is_real_folder,
    os_error,
)
from flatout.inside.redirect.shadow import View
from flatout.inside.redirect.stand_in import call_real

_O_TMPFILE = getattr(os, "O_TMPFILE", 0)
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


class Calls:
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
                return call_real(real, path, path, *args, **kwargs)
            return call_real(real, path, self._there(place, path), *args, **kwargs)

        return look

    def _touching(self, real: Callable[..., Any]) -> Callable[..., Any]:
        follows = real.__name__ not in _NOT_FOLLOWING

        def touch(path: Any, *args: Any, dir_fd: int | None = None, **kwargs: Any) -> Any:
            follow = follows and kwargs.get("follow_symlinks", True)
            place = self._write(path, dir_fd, follow)
            if place is None:
                return call_real(real, path, path, *args, **kwargs)
            if place.found is None:
                raise os_error(errno.ENOENT, path)
            there = place.path if place.layer is Layer.FREE else self._view.copy_up(place, path)
            # The audit event does not say that a link itself is meant, not what it leads to.
            self._expected.path = None if follow else there
            try:
                return call_real(real, path, there, *args, **kwargs)
            finally:
                self._expected.path = None

        return touch

    def _making(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def make(path: Any, *args: Any, dir_fd: int | None = None, **kwargs: Any) -> Any:
            text = as_text(path)
            if text is None:
                return call_real(real, path, path, *args, **kwargs)
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
            call_real(real, given, place.path, *args, **kwargs)
            return
        if place.layer is not Layer.MISSING:
            raise os_error(errno.EEXIST, given)
        call_real(real, given, self._view.room_for(place.path, given), *args, **kwargs)
        self._view.changed()

    def _read(
        self, path: Any, dir_fd: int | None, follow: bool = True, *, listing: bool = False
    ) -> Place | None:
        text = as_text(path)
        try:
            place = text and self._view.reading(text, dir_fd, follow, listing=listing)
        except OSError as error:
            error.filename = path
            raise
        if not place:
            return None
        if place.layer is Layer.MISSING:
            raise os_error(errno.ENOENT, path)
        return place

    def _write(self, path: Any, dir_fd: int | None, follow: bool = True) -> Place | None:
        text = as_text(path)
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
        """As `os.open`."""
        if not isinstance(flags, int) or not flags & WRITING:
            follow = not (isinstance(flags, int) and flags & os.O_NOFOLLOW)
            place = self._read(path, dir_fd, follow)
            if place is None:
                return call_real(posix.open, path, path, flags, mode, dir_fd=dir_fd)
            return call_real(posix.open, path, self._view.physical(place), flags, mode)
        fresh = flags & os.O_CREAT and flags & os.O_EXCL
        place = self._write(path, dir_fd, follow=not (fresh or flags & os.O_NOFOLLOW))
        if place is None:
            return call_real(posix.open, path, path, flags, mode, dir_fd=dir_fd)
        if place.layer is Layer.FREE or is_channel(place.found):
            return call_real(posix.open, path, place.path, flags, mode)
        return call_real(posix.open, path, self.where_to_write(place, path, flags), flags, mode)

    def where_to_write(self, place: Place, given: object, flags: int) -> str:
        """Where in the shadow to open a file for writing, made ready for it."""
        view = self._view
        if _O_TMPFILE and flags & _O_TMPFILE == _O_TMPFILE:
            return view.copy_up(place, given)  # a nameless file in a folder
        if place.found is None:
            if not flags & os.O_CREAT:
                raise os_error(errno.ENOENT, given)
            return view.room_for(place.path, given)
        if flags & os.O_CREAT and flags & os.O_EXCL:
            raise os_error(errno.EEXIST, given)
        if stat.S_ISDIR(place.found.st_mode):
            raise os_error(errno.EISDIR, given)
        if place.layer is Layer.SHADOW:
            return view.physical(place)
        if not flags & (os.O_WRONLY | os.O_RDWR | os.O_TRUNC):
            return place.path  # O_CREAT or O_APPEND without a wish to write, of a file that is there
        if not posix.access(place.path, os.W_OK):
            raise os_error(errno.EACCES, given)
        return view.copy_up(place, given, content=not flags & os.O_TRUNC)

    def access(
        self, path: Any, mode: int, *, dir_fd: int | None = None, effective_ids: bool = False, **kwargs: Any
    ) -> Any:
        """As `os.access`."""
        if effective_ids:
            kwargs["effective_ids"] = True  # not every system takes it
        try:
            place = self._read(path, dir_fd, kwargs.get("follow_symlinks", True))
        except OSError:
            return False
        if place is None:
            return call_real(posix.access, path, path, mode, dir_fd=dir_fd, **kwargs)
        allowed = call_real(posix.access, path, self._view.physical(place), mode, **kwargs)
        if allowed and place.layer is Layer.SHADOW and is_real_folder(place):
            return call_real(
                posix.access, path, place.path, mode, **kwargs
            )  # its copy may be written in any case
        return allowed

    def _listed(self, path: Any) -> Place | None:
        if isinstance(path, int):
            try:
                path = descriptor_path(path)
            except OSError:
                return None
        place = self._read("." if path is None else path, None, listing=True)
        if place is not None and place.found is not None and not stat.S_ISDIR(place.found.st_mode):
            raise os_error(errno.ENOTDIR, path)
        return place

    def listdir(self, path: Any = None) -> Any:
        """As `os.listdir`."""
        place = self._listed(path)
        if place is None:
            return call_real(posix.listdir, path, path)
        names = self._view.names(place)
        return [os.fsencode(name) for name in names] if is_bytes(path) else names

    def scandir(self, path: Any = None) -> Any:
        """As `os.scandir`."""
        place = self._listed(path)
        if place is None:
            return call_real(posix.scandir, path, path)
        entries = []
        for name in self._view.names(place):
            shown = name if isinstance(path, int) else os.path.join(as_text(path) or ".", name)  # noqa: PTH118
            whole = f"{place.path}/{name}"
            if is_bytes(path):
                entries.append(Entry(os.fsencode(name), os.fsencode(shown), whole))
            else:
                entries.append(Entry(name, shown, whole))
        return Entries(entries)

    def chdir(self, path: Any) -> None:
        """As `os.chdir`."""
        place = self._read(path, None)
        if place is None:
            call_real(posix.chdir, path, path)
        else:
            # The real folder where there is one: programs that the script starts find its files there.
            call_real(posix.chdir, path, place.path if is_real_folder(place) else self._view.physical(place))

    def getcwd(self) -> str:
        """As `os.getcwd`."""
        return self._view.absolute(posix.getcwd())[0] or "/"

    def getcwdb(self) -> bytes:
        """As `os.getcwdb`."""
        return os.fsencode(self.getcwd())

    def rename(
        self, src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
    ) -> None:
        """As `os.rename`."""
        if as_text(src) is None or as_text(dst) is None:
            call_real(posix.rename, src, src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
            return
        source = self._named(src, src_dir_fd)
        target = self._named(dst, dst_dir_fd)
        if source.layer is Layer.FREE and target.layer is Layer.FREE:
            call_real(posix.rename, src, source.path, target.path)
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
        if target.layer is Layer.SHADOW and is_folder(target):
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
        if is_folder(source) != is_folder(target):
            return errno.EISDIR if is_folder(target) else errno.ENOTDIR
        if is_folder(target) and source.path != target.path and self._view.names(target):
            return errno.ENOTEMPTY
        return 0

    def _named(self, path: Any, dir_fd: int | None) -> Place:
        """The name itself, not what a link behind it leads to."""
        place = self._write((as_text(path) or "").rstrip("/") or "/", dir_fd, follow=False)
        if place is None:
            raise os_error(errno.ENOENT, path)
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
        """As `os.link`."""
        if as_text(src) is None or as_text(dst) is None:
            call_real(posix.link, src, src, dst)
            return
        # link(2) follows on macOS alone.
        source = self._write(src, src_dir_fd, follow=follow_symlinks and sys.platform == "darwin")
        target = self._named(dst, dst_dir_fd)
        if source is None or source.found is None:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), src, None, dst)
        if target.found is not None:
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), src, None, dst)
        if is_folder(source):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM), src, None, dst)
        where = target.path if target.layer is Layer.FREE else self._view.room_for(target.path, dst)
        origin = source.path if source.layer is Layer.FREE else self._view.copy_up(source, src)
        call_real(self._view.link, src, origin, where, src)
        self._view.changed()

    def symlink(
        self, src: Any, dst: Any, target_is_directory: bool = False, *, dir_fd: int | None = None
    ) -> None:
        """As `os.symlink`."""
        text = as_text(dst)
        if text is None or as_text(src) is None:
            call_real(posix.symlink, src, src, dst, target_is_directory, dir_fd=dir_fd)
            return
        self._create(lambda path: posix.symlink(os.fsdecode(src), path), text, dst, dir_fd)

    def remove(self, path: Any, *, dir_fd: int | None = None) -> None:
        """As `os.remove`."""
        if as_text(path) is None:
            call_real(posix.remove, path, path)
            return
        place = self._named(path, dir_fd)
        if place.layer is Layer.FREE:
            call_real(posix.remove, path, place.path)
            return
        if is_folder(place):
            raise os_error(errno.EPERM if sys.platform == "darwin" else errno.EISDIR, path)
        self._drop(place, path, posix.unlink)

    unlink = remove

    def rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        """As `os.rmdir`."""
        if as_text(path) is None:
            call_real(posix.rmdir, path, path)
            return
        place = self._named(path, dir_fd)
        if place.layer is Layer.FREE:
            call_real(posix.rmdir, path, place.path)
            return
        if place.found is not None and not is_folder(place):
            raise os_error(errno.ENOTDIR, path)
        if place.found is not None and self._view.names(place):
            raise os_error(errno.ENOTEMPTY, path)
        self._drop(place, path, posix.rmdir)

    def _drop(self, place: Place, given: object, real: Callable[[str], None]) -> None:
        if place.found is None:
            raise os_error(errno.ENOENT, given)
        self._view.may_change(self._view.locate(place.path.rpartition("/")[0] or "/"), given)
        self._view.hide(place)
        if place.layer is Layer.SHADOW:
            call_real(real, given, self._view.physical(place))
        self._view.changed()
