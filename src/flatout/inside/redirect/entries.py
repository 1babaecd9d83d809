"""What `os.scandir` yields for a folder that is partly in the shadow."""

import os
import stat
from collections.abc import Callable, Iterator


class Entry:
    """What `os.scandir` yields for a folder that is partly in the shadow."""

    def __init__(self, name: str | bytes, path: str | bytes, whole: str) -> None:
        self.name, self.path, self._whole = name, path, whole

    def __fspath__(self) -> str | bytes:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """As `os.DirEntry.stat`."""
        return os.stat(self._whole, follow_symlinks=follow_symlinks)  # noqa: PTH116 - through our own

    def inode(self) -> int:
        """As `os.DirEntry.inode`."""
        return self.stat(follow_symlinks=False).st_ino

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """As `os.DirEntry.is_dir`."""
        return self._is(stat.S_ISDIR, follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """As `os.DirEntry.is_file`."""
        return self._is(stat.S_ISREG, follow_symlinks)

    def is_symlink(self) -> bool:
        """As `os.DirEntry.is_symlink`."""
        return self._is(stat.S_ISLNK, False)

    def is_junction(self) -> bool:
        """As `os.DirEntry.is_junction`."""
        return False

    def _is(self, kind: Callable[[int], bool], follow: bool) -> bool:
        try:
            return kind(self.stat(follow_symlinks=follow).st_mode)
        except FileNotFoundError:
            return False


class Entries:
    """An iterator that can be closed, as `os.scandir` returns."""

    def __init__(self, entries: list[Entry]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[Entry]:
        return self

    def __next__(self) -> Entry:
        return next(self._entries)

    def __enter__(self) -> "Entries":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Yield nothing more."""
        self._entries = iter(())
