"""Keeps measured limits per device, driver and torch version, for later commands and later days."""

import re
from pathlib import Path

from flatout.records.atomic import ensure_writable, write_atomically
from flatout.records.codec import decode, encode
from flatout.records.device import Device
from flatout.records.limits import Limits
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
        parts = (device.uuid or device.name, device.driver_version or "nodriver", torch_version, f"m{METHOD}")
        return self._folder / ("_".join(re.sub(r"[^A-Za-z0-9.+-]", "-", part) for part in parts) + ".json")

    def load(self, device: Device, torch_version: str) -> Limits | None:
        """What was measured before, or None. A damaged file is an error: it is not overwritten unasked."""
        path = self.path_for(device, torch_version)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        return decode(data, path, "limits", SCHEMA_VERSION, Limits, remedy=_DAMAGED)

    def ensure_writable(self) -> None:
        """Fail before measuring, not after."""
        ensure_writable(self._folder, remedy=_REMEDY)

    def save(self, device: Device, limits: Limits) -> Path:
        """Keep a result."""
        path = self.path_for(device, limits.device.torch_version)
        write_atomically(path, encode("limits", SCHEMA_VERSION, limits), remedy=_REMEDY)
        return path
