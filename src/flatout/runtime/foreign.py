"""Files that a job may write to although they belong to another user or group.

An overlay in a user namespace, where those owners do not exist, cannot take changes to them.
"""

import collections
import dataclasses
import os

# Enough for a project's own files; a data set below them is not walked through.
_LOOK_AT = 5000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Foreign:
    """What was found in a folder, nearest first."""

    folders: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


def find_foreign(folder: str, *, look_at: int = _LOOK_AT) -> Foreign:
    """What this user may change in `folder` without owning it in person and by his own group."""
    user, group = os.getuid(), os.getgid()
    folders: list[str] = []
    files: list[str] = []
    queue = collections.deque([folder])
    while queue and look_at > 0:
        for entry in _entries(queue.popleft(), look_at):
            look_at -= 1
            if entry.is_symlink():
                continue
            is_folder = entry.is_dir(follow_symlinks=False)
            if is_folder:
                queue.append(entry.path)
            looks = entry.stat(follow_symlinks=False)
            if (looks.st_uid, looks.st_gid) != (user, group) and os.access(entry.path, os.W_OK):
                (folders if is_folder else files).append(entry.path)
    return Foreign(folders=tuple(folders), files=tuple(files))


def _entries(folder: str, at_most: int) -> "list[os.DirEntry[str]]":
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                found.append(entry)
                if len(found) == at_most:
                    break
    except OSError:
        pass
    return found
