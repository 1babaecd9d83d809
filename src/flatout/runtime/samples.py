"""Samples the GPUs while a trial runs: from Flatout's own process, so that the job does not feel it."""

import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec

from flatout.hardware.machine import default_sources
from flatout.hardware.protocol import DeviceSource
from flatout.records.device import Device, DeviceSample

_PERIOD_S = 0.2
# What is dear to read, or changes slowly: once in so many samples.
_THOROUGHLY_IN = 25
_AT_MOST = 20_000


class DeviceSampler:
    """Takes a sample of every GPU a few times a second; used as a context manager."""

    def __init__(self, sources: Sequence[DeviceSource] | None = None) -> None:
        self._sources = default_sources() if sources is None else list(sources)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="flatout-samples", daemon=True)
        self._found: list[tuple[DeviceSource, list[Device]]] = []
        self.samples: list[DeviceSample] = []

    def __enter__(self) -> "DeviceSampler":
        for source in self._sources:
            devices = [device for device in source.discover().devices if device.vendor != "cpu"]
            if devices:
                self._found.append((source, devices))
        if self._found:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._found:
            self._thread.join(timeout=5)
        for source in self._sources:
            source.close()

    @property
    def devices(self) -> list[Device]:
        """The GPUs that were found."""
        return [device for _, devices in self._found for device in devices]

    def write(self, path: Path) -> None:
        """Keep the samples beside the steps, one line each."""
        if self.samples:
            path.write_bytes(msgspec.json.Encoder().encode_lines(self.samples))

    def _watch(self) -> None:
        count = 0
        while not self._stop.wait(_PERIOD_S) and len(self.samples) < _AT_MOST:
            for source, devices in self._found:
                self.samples += source.sample(devices, thoroughly=count % _THOROUGHLY_IN == 0)
            count += 1
