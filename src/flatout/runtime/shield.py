"""The write shield: a job may write anywhere, and afterwards every file is as it was.

Each place that holds files is covered by an overlay, whose changes go to a scratch folder; nothing is copied
to set this up. It holds for the process that raises it and for all that it starts, in a mount namespace that
vanishes with them. What cannot be covered becomes read-only. Used by the keeper, before the job starts.
"""

import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from flatout.runtime import linux, namespace
from flatout.runtime.covering import Covering, show, show_sockets
from flatout.runtime.foreign import Foreign, find_foreign
from flatout.runtime.layers import Layers
from flatout.runtime.mounts import Place, is_within, open_place, read_mounts, survey

# Where programs put files without being told to.
_COMMON_FOLDERS = ("/tmp", "/var/tmp")  # noqa: S108


class ShieldUnavailable(OSError):
    """This machine does not allow the protection; nothing may be started that counts on it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShieldRequest:
    """What the shield is to use, and what it is to leave open."""

    # An existing, empty folder for what the job writes; the caller removes it. The job sees it empty.
    scratch: Path
    # Folders that stay really writable: the run folder, download caches. Missing ones are passed over.
    keep: tuple[Path, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shield:
    """What is protected now, and how."""

    kind: str = "overlay"
    # Writes here succeed and vanish.
    protected: tuple[str, ...]
    # Writes here fail.
    read_only: tuple[str, ...]


def raise_shield(request: ShieldRequest, *, folder: Path, home: Path | None = None) -> Shield:
    """Protect the files of this machine from this process, which must have one thread, and its children.

    Afterwards go to `folder` again by its path: a working folder from before lies under the shield. Raises
    ShieldUnavailable when what is written in `folder` or `home` would reach the real files, or fail.
    """
    if sys.platform != "linux":
        raise ShieldUnavailable("overlays exist on Linux alone")
    keep = sorted({os.path.realpath(path) for path in request.keep if path.exists()})
    homes = [os.path.realpath(path) for path in (folder, home) if path is not None]
    try:
        with _witnesses(homes, keep) as witnesses:
            scratch = os.path.realpath(request.scratch)
            shield = _raised(scratch, keep, homes)
            for witness in witnesses:
                _prove(witness)
            # The kernel answers ELOOP where an overlay would show its own layers: that would stop a job that
            # walks through its folder. Last, so that a failure leaves nothing mounted there.
            linux.mount("tmpfs", scratch, "tmpfs", linux.MS_RDONLY, "size=4k,mode=755")
    except ShieldUnavailable:
        raise
    except OSError as error:
        raise ShieldUnavailable(f"the kernel refuses an overlay: {error.strerror or error}") from error
    return shield


def uncover_scratch(request: ShieldRequest) -> None:
    """Let the process that raised the shield, and it alone, remove the scratch folder after the job."""
    with contextlib.suppress(OSError):
        linux.unmount(os.path.realpath(request.scratch))


def _raised(scratch: str, keep: Sequence[str], homes: Sequence[str]) -> Shield:
    # Root is not a stranger to any file. Owners can be told apart before the namespace is entered only.
    foreign = find_foreign(homes[0]) if os.geteuid() != 0 else Foreign()
    in_user_namespace = namespace.enter()
    if in_user_namespace and foreign.files:
        raise ShieldUnavailable(
            f"{foreign.files[0]} belongs to a user or group that no overlay of ours can keep"
        )
    ways = (*homes, *map(os.path.realpath, _COMMON_FOLDERS), *foreign.folders)
    layers = Layers(scratch, in_user_namespace=in_user_namespace, open_ways=ways)
    mounts = read_mounts()
    places = survey(mounts)
    kept = [place for path in keep if (place := open_place(path, holds_files=False))]
    try:
        covering = Covering(layers, mounts, (*keep, scratch))
        try:
            for place in places:
                covering.settle(place)
        finally:
            layers.close()
        show_sockets(places)
        for place in kept:
            show(place.real, place.path)
        covering.close_root()
    finally:
        for place in (*places, *kept):
            os.close(place.descriptor)
    return Shield(protected=tuple(covering.protected), read_only=tuple(covering.read_only))


@contextlib.contextmanager
def _witnesses(homes: Sequence[str], keep: Sequence[str]) -> Iterator[list[Place]]:
    """The folders in which the job can really write now, seen past the shield."""
    protected = [home for home in homes if not any(is_within(home, kept) for kept in keep)]
    writable = [home for home in protected if os.access(home, os.W_OK)]
    places = [place for home in writable if (place := open_place(home, holds_files=True))]
    try:
        yield places
    finally:
        for place in places:
            os.close(place.descriptor)


def _prove(witness: Place) -> None:
    """Write a file as the job would, and see that the real folder does not get it."""
    name = f".flatout-probe-{os.urandom(8).hex()}"
    probe = Path(witness.path, name)
    try:
        probe.touch(exist_ok=False)
    except OSError as error:
        raise ShieldUnavailable(
            f"under an overlay, nothing can be written in {witness.path}: {error}"
        ) from error
    leaked = Path(witness.real, name).exists()
    probe.unlink()
    # The keeper may write where the job may not; this question is answered for the job.
    if not os.access(witness.path, os.W_OK):
        raise ShieldUnavailable(f"under an overlay, the right to write in {witness.path} is lost")
    if leaked:
        raise ShieldUnavailable(f"what is written in {witness.path} would reach the real folder")
