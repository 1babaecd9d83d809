"""Removes the folders of a trial, whatever the job and the kernel left in them."""

import dataclasses
import os
import stat
from pathlib import Path


@dataclasses.dataclass(frozen=True, kw_only=True)
class Doomed:
    """A folder to remove later, found again even when its path has been covered since."""

    path: str
    parent: int
    name: str
    device: int

    def remove(self) -> bool:
        """Remove it with all that it holds; False when something could not be removed.

        Links are removed, not followed; what is mounted in it stays.
        """
        try:
            _empty(self.name, self.parent, self.device)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True


def hold(path: Path) -> Doomed | None:
    """Take hold of a folder, to remove it later; None where there is none."""
    real = os.path.realpath(path)
    parent, name = os.path.split(real)
    try:
        looks = os.lstat(real)
        if not stat.S_ISDIR(looks.st_mode):
            return None
        descriptor = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    return Doomed(path=real, parent=descriptor, name=name, device=looks.st_dev)


def remove_folder(path: Path) -> bool:
    """Remove the scratch folder of a job whose keeper can no longer do it."""
    doomed = hold(path)
    if doomed is None:
        return True
    try:
        return doomed.remove()
    finally:
        os.close(doomed.parent)


def _empty(name: str, parent: int, device: int) -> None:
    """Remove a folder and what is in it; goes on after a failure, and raises the last one."""
    # The kernel's own folder in an overlay's work folder has mode 0, and so may one of the job's.
    os.chmod(name, 0o700, dir_fd=parent)
    folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    failure: OSError | None = None
    try:
        for entry in list(os.scandir(folder)):
            try:
                _remove(entry.name, folder, device)
            except FileNotFoundError:
                continue  # whoever else cleans up here was quicker
            except OSError as error:
                failure = error
    finally:
        os.close(folder)
    if failure is not None:
        raise failure
    os.rmdir(name, dir_fd=parent)


def _remove(name: str, folder: int, device: int) -> None:
    looks = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if not stat.S_ISDIR(looks.st_mode):
        os.unlink(name, dir_fd=folder)
    elif looks.st_dev == device:
        _empty(name, folder, device)
    else:
        raise OSError(f"{name} is on another file system")
