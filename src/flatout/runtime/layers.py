"""Overlays: where the changes go that a job makes to a place, so that the place itself stays as it is."""

import contextlib
import itertools
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from flatout.runtime import linux
from flatout.runtime.mounts import Place, is_within

# The first that the kernel accepts is used. `volatile` spares the job, and us at the end, flushing files to
# disk that are thrown away; `metacopy` spares copying a file of which the mode alone changes; `redirect_dir`
# allows renaming folders. Old kernels know none of them, user namespaces forbid the last two.
_OPTIONS_OF_ROOT = ("redirect_dir=on,metacopy=on,index=off,volatile", "index=off", "")
_OPTIONS_OF_USER = ("userxattr,volatile", "userxattr")

# statvfs and mount give these the same values.
_KEPT_FLAGS = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
_SHARE_OF_FREE_MEMORY = 0.5
# Where memory is mounted meanwhile: a folder that exists everywhere and that no cover copies.
_MEMORY_FOLDER = "/dev"


def mount_flags(path: str) -> int:
    """The flags that a mount over `path` must keep: a user namespace may not drop them."""
    return os.statvfs(path).f_flag & _KEPT_FLAGS


class Layers:
    """Makes overlays. Changes go to `scratch`, or to memory where its file system cannot take them."""

    def __init__(self, scratch: str, *, in_user_namespace: bool, open_ways: Sequence[str]) -> None:
        """`open_ways`: folders in which the job must be able to write, whoever owns their parents."""
        self._scratch = os.open(scratch, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._in_user_namespace = in_user_namespace
        self._options = _OPTIONS_OF_USER if in_user_namespace else _OPTIONS_OF_ROOT
        self._open_ways = open_ways
        self._memory: int | None = None
        self._numbers = itertools.count()

    def cover(self, place: Place) -> bool:
        """Put an overlay on a folder; False where no way of doing so is accepted."""
        return any(
            self._overlay(place, base, options)
            for base in (self._disk, self._in_memory)
            for options in self._options
        )

    def close(self) -> None:
        """Let go of the folders; the overlays keep what they need."""
        if self._memory is not None:
            linux.unmount(f"/proc/self/fd/{self._memory}")
            os.close(self._memory)
        os.close(self._scratch)

    def _disk(self) -> str:
        return f"/proc/self/fd/{self._scratch}"

    def _in_memory(self) -> str:
        if self._memory is None:
            linux.mount("tmpfs", _MEMORY_FOLDER, "tmpfs", 0, f"mode=700,size={_memory_bytes()}")
            self._memory = os.open(_MEMORY_FOLDER, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._memory}"

    def _overlay(self, place: Place, base: Callable[[], str], options: str) -> bool:
        try:
            # A fresh pair for each attempt: a refused one can leave marks that make the next one fail.
            pair = Path(base(), str(next(self._numbers)))
            upper, work = pair / "upper", pair / "work"
            upper.mkdir(parents=True)
            work.mkdir()
            self._open_the_ways(place, upper)
            self._imitate(place.real, upper)
            with _held(upper) as upper_fd, _held(work) as work_fd:
                # Descriptors hold no comma, colon or backslash, which would need escaping here.
                layers = f"lowerdir={place.real},upperdir={upper_fd},workdir={work_fd}"
                data = f"{layers},{options}" if options else layers
                linux.mount("overlay", place.path, "overlay", mount_flags(place.real), data)
        except OSError:
            return False
        return True

    def _open_the_ways(self, place: Place, upper: Path) -> None:
        """Make the parents of the job's folders in the upper layer, as ours.

        In a user namespace the kernel cannot copy a folder there whose owner or group does not exist in it.
        """
        if not self._in_user_namespace:
            return
        for way in self._open_ways:
            if not is_within(way, place.path):
                continue
            step = Path()
            for part in Path(way).relative_to(place.path).parts:
                step /= part
                if Path(place.real, step).is_dir():
                    (upper / step).mkdir(exist_ok=True)
        # After all are made: making one changes the time of its parent, and needs the right to write there.
        for folder, names, _ in os.walk(upper, topdown=False):
            for name in names:
                made = Path(folder, name)
                self._imitate(str(Path(place.real, made.relative_to(upper))), made)

    def _imitate(self, original: str, made: Path) -> None:
        """Give a folder of the upper layer the looks of the one that it stands for."""
        looks = Path(original).stat()
        mode = stat.S_IMODE(looks.st_mode)
        with contextlib.suppress(OSError):
            os.chown(made, looks.st_uid, looks.st_gid)
        if self._in_user_namespace:
            # It is ours now, whoever owned it: our right to write must come out the same.
            mode = mode | 0o700 if os.access(original, os.W_OK) else mode & ~0o222
        made.chmod(mode)
        os.utime(made, ns=(looks.st_atime_ns, looks.st_mtime_ns))


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[str]:
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _memory_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    free_kib = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    return int(free_kib * 1024 * _SHARE_OF_FREE_MEMORY)
