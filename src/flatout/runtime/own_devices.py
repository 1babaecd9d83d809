"""The GPUs that a job trains on, sampled from outside while it runs: energy, clock limits, idle time."""

import contextlib
import math
import os
import time
from collections.abc import Mapping, Sequence

import psutil

from flatout.analyze.energy import EnergyFollower
from flatout.analyze.throttling import GAP_S, ThrottlingFollower
from flatout.hardware.catalogue import hour_price, price_table
from flatout.hardware.machine import default_sources
from flatout.hardware.protocol import DeviceSource
from flatout.hardware.visible import visible_cuda_devices
from flatout.records.device import Device, DeviceSample, Vendor
from flatout.records.energy import Energy, HourPrice, Throttling
from flatout.records.errors import FlatoutError
from flatout.runtime.following import Followed

# Whose devices torch calls so.
_VENDORS: Mapping[str, tuple[Vendor, ...]] = {
    "cuda": ("nvidia", "amd"),
    "xpu": ("intel",),
    "mps": ("apple",),
}
_THOROUGHLY_EVERY_S = 10.0
NOT_YET = "on what it trains is known after its first updates"


class OwnDevices:
    """Looked for once it is known on what the job trains; a job on the CPU costs nothing here."""

    def __init__(self, sources: Sequence[DeviceSource] | None = None) -> None:
        self._given = sources
        self._sources: list[DeviceSource] = []
        self._all: list[tuple[DeviceSource, Device]] = []
        self._own: dict[str, tuple[DeviceSource, Device]] = {}
        self._looked_for: set[str] = set()
        self._last: dict[str, DeviceSample] = {}
        self._energy = EnergyFollower()
        self._throttling: ThrottlingFollower | None = None
        self._thorough_at = -math.inf
        # Why there are none, and seconds for which no kernel ran on those that there are.
        self.reason = NOT_YET
        self.idle_s = 0.0

    @property
    def devices(self) -> tuple[Device, ...]:
        """Those that the job was seen to train on."""
        return tuple(device for _, device in self._own.values())

    def look(self, ranks: Sequence[Followed]) -> None:
        """Find the devices of ranks that have told where they train."""
        for one in ranks:
            name = str(one.about.get("device") or "")
            kind, _, _ = name.partition(":")
            if kind in _VENDORS and one.folder.name not in self._looked_for:
                self._looked_for.add(one.folder.name)
                self._discover(kind)
                self._take(one, kind)
            elif name and not self._own and kind not in _VENDORS:
                self.reason = f"it trains on {'the CPU' if kind == 'cpu' else kind}"

    def sample(self) -> None:
        """One sample of each; what is dear to read, the counter of energy among it, comes now and then."""
        thoroughly = time.monotonic() >= self._thorough_at + _THOROUGHLY_EVERY_S
        if thoroughly:
            self._thorough_at = time.monotonic()
        for source in {id(source): source for source, _ in self._own.values()}.values():
            own = [device for of, device in self._own.values() if of is source]
            for sample in source.sample(own, thoroughly=thoroughly):
                self._energy.add(sample)
                if self._throttling is not None:
                    self._throttling.add(sample)
                self._note_idle(sample)

    def newest(self) -> list[tuple[Device, DeviceSample]]:
        """The last sample of each."""
        found = [(device, self._last.get(device.uuid or f"{device.index}")) for device in self.devices]
        return [(device, sample) for device, sample in found if sample is not None]

    def energy(self) -> Energy:
        """Since it is known on what the job trains."""
        return self._energy.total()

    def throttling(self) -> Throttling:
        """Likewise."""
        return self._throttling.total() if self._throttling is not None else Throttling()

    def price(self) -> HourPrice:
        """Of an hour of one of them; the user's own prices go before ours."""
        if not self._own:
            return HourPrice(usd_per_gpu_hour=None, source=self.reason)
        try:
            return hour_price(self.devices, price_table())
        except (FlatoutError, OSError) as error:
            return HourPrice(usd_per_gpu_hour=None, source=f"the prices cannot be read: {error}")

    def close(self) -> None:
        """Give drivers back."""
        for source in self._sources:
            source.close()

    def _discover(self, kind: str) -> None:
        if self._sources:
            return
        sources = default_sources() if self._given is None else list(self._given)
        self._sources = [source for source in sources if source.vendor in _VENDORS[kind]]
        for source in self._sources:
            self._all += [(source, device) for device in source.discover().devices]

    def _take(self, one: Followed, kind: str) -> None:
        found = self._device_of(one, kind)
        if found is None:
            self.reason = f"none of this machine's devices is known as its {one.about.get('device')}"
            return
        self._own.setdefault(found.uuid or f"{found.vendor}-{found.index}", self._source_of(found))
        if self._throttling is None:
            self._throttling = ThrottlingFollower([device for _, device in self._all])

    def _source_of(self, device: Device) -> tuple[DeviceSource, Device]:
        return next(pair for pair in self._all if pair[1] is device)

    def _device_of(self, one: Followed, kind: str) -> Device | None:
        devices = [device for _, device in self._all]
        uuid = str(one.about.get("device_uuid") or "").lower()
        for device in devices:
            if uuid and (device.uuid or "").lower().endswith(uuid):
                return device
        _, _, index = str(one.about.get("device")).partition(":")
        number = int(index) if index.isdigit() else 0
        if kind == "cuda" and any(device.vendor == "nvidia" for device in devices):
            visible = visible_cuda_devices(devices, _environment_of(one.pid)).devices or ()
            return visible[number] if number < len(visible) else None
        return devices[number] if number < len(devices) else None

    def _note_idle(self, sample: DeviceSample) -> None:
        key = sample.uuid or f"{sample.index}"
        last = self._last.get(key)
        self._last[key] = sample
        if last is None or sample.state != "up" or sample.kernel_running_share is None:
            return
        took_s = sample.taken_at_unix_s - last.taken_at_unix_s
        if 0 < took_s <= GAP_S:
            self.idle_s += took_s * max(1.0 - sample.kernel_running_share, 0.0)


def _environment_of(pid: int) -> Mapping[str, str]:
    """A rank's own: launchers hide GPUs from ranks."""
    with contextlib.suppress(psutil.Error, OSError):
        return psutil.Process(pid).environ()
    return os.environ
