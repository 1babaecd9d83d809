"""Keeps measured limits per device, driver and torch version, for later commands and later days."""

import contextlib
import platform
import re
from collections.abc import Iterator
from pathlib import Path

from flatout.records.atomic import ensure_writable, write_atomically
from flatout.records.codec import decode, encode
from flatout.records.device import Device
from flatout.records.errors import EnvironmentProblem
from flatout.records.limits import Limits
from flatout.records.lock import folder_lock
from flatout.records.places import CACHE_VARIABLE, cache_folder

SCHEMA_VERSION = 1
# Raised when the way of measuring changes, so that old figures are not taken for new ones.
METHOD = 1
_REMEDY = (
    f"flatout limits --no-cache measures without keeping; or set {CACHE_VARIABLE} to a folder you may write"
)
_DAMAGED = "flatout limits --fresh measures again and replaces it"


class LimitsStore:
    """One file per device, driver, torch version and method, under the cache folder."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = (folder or cache_folder()) / "limits"

    def path_for(self, device: Device, torch_version: str) -> Path:
        """The file for this combination."""
        # Without a UUID, two equal cards are told apart by their slot and their machine.
        identity = device.uuid or f"{device.name}-{device.pci_bus_id or device.index}-{platform.node()}"
        parts = (identity, device.driver_version or "nodriver", torch_version, f"m{METHOD}")
        return self._folder / ("_".join(re.sub(r"[^A-Za-z0-9.+-]", "-", part) for part in parts) + ".json")

    def load(self, device: Device, torch_version: str) -> Limits | None:
        """What was measured before, or None. A damaged file is an error: it is not overwritten unasked."""
        path = self.path_for(device, torch_version)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise EnvironmentProblem(
                f"cannot read {path}: {error.strerror or error}",
                expected="a file that this user may read, or none",
                remedy=_REMEDY,
            ) from error
        return decode(data, path, "limits", SCHEMA_VERSION, Limits, remedy=_DAMAGED)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Alone while measuring: two at once would spoil each other. Fails before measuring, not after."""
        ensure_writable(self._folder, remedy=_REMEDY)
        with folder_lock(self._folder):
            yield

    def save(self, device: Device, limits: Limits) -> Path:
        """Keep a result."""
        path = self.path_for(device, limits.device.torch_version)
        write_atomically(path, encode("limits", SCHEMA_VERSION, limits), remedy=_REMEDY)
        return path
