"""Covers places one by one: with an overlay, else read-only; and shows again what a cover hides."""

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from flatout.runtime import linux
from flatout.runtime.layers import Layers, mount_flags
from flatout.runtime.mounts import Mount, Place, folders_in, is_within


class Covering:
    """What has been done so far, place by place, parents first."""

    def __init__(self, layers: Layers, mounts: Sequence[Mount], left: Sequence[str]) -> None:
        """`left`: the folders that are no concern of the covers."""
        self.protected: list[str] = []
        self.read_only: list[str] = []
        self._layers = layers
        self._mounts = mounts
        self._left = left

    def settle(self, place: Place) -> None:
        """Protect a place that holds files; show any other again if the cover of a parent hides it."""
        if self._is_left(place):
            return
        if not place.holds_files:
            show(place.real, place.path)
        elif place.is_folder and self._layers.cover(place):
            self.protected.append(place.path)
        else:
            self._close(place)
            self._open_parts(place)

    def close_root(self) -> None:
        """Forbid new entries in / itself, which has no overlay: it could not hold the other mounts."""
        if any(mount.path == "/" and mount.holds_files for mount in self._mounts):
            try:
                _forbid_writes("/")
            except OSError:
                if os.access("/", os.W_OK):
                    raise
            else:
                self.read_only.append("/")

    def _is_left(self, place: Place) -> bool:
        return any(is_within(place.path, left) for left in self._left)

    def _close(self, place: Place) -> None:
        try:
            linux.mount(place.real, place.path, None, linux.MS_BIND | linux.MS_REC)
            _forbid_writes(place.path)
        except OSError:
            if place.is_folder or os.access(place.path, os.W_OK):
                raise
        else:
            self.read_only.append(place.path)

    def _open_parts(self, place: Place) -> None:
        """Cover the folders in a read-only one: a user namespace allows no overlay over one with mounts."""
        if not any(mount.path != place.path and is_within(mount.path, place.path) for mount in self._mounts):
            return
        for part in folders_in(place):
            try:
                if self._is_left(part):
                    continue
                if self._layers.cover(part):
                    self.protected.append(part.path)
                else:
                    self._open_parts(part)
            finally:
                os.close(part.descriptor)


def show(source: str, path: str) -> None:
    """Make `path` lead to the real `source`, with all that is mounted in it, unless it does already."""
    with contextlib.suppress(OSError):
        if Path(source).samefile(path):
            return
    linux.mount(source, path, None, linux.MS_BIND | linux.MS_REC)


def show_sockets(places: Sequence[Place]) -> None:
    """Make sockets that someone listens on reachable: through an overlay, connecting is refused."""
    for path in _socket_paths():
        holder = max((place for place in places if is_within(path, place.path)), key=_depth, default=None)
        if holder is None or not holder.is_folder:
            continue
        source = f"{holder.real}/{os.path.relpath(path, holder.path)}"
        # It may be gone, or out of reach for this user: then nobody misses it.
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.lstat(source).st_mode):
                show(source, path)


def _socket_paths() -> Iterator[str]:
    text = os.fsdecode(Path("/proc/net/unix").read_bytes())
    for line in text.split("\n")[1:]:
        fields = line.split(maxsplit=7)
        if len(fields) == 8 and fields[7].startswith("/"):
            yield os.path.realpath(fields[7])


def _depth(place: Place) -> int:
    return len(place.path)


def _forbid_writes(path: str) -> None:
    flags = linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | mount_flags(path)
    linux.mount(None, path, None, flags)
