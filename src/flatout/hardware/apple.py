"""Apple's GPUs, which share the machine's memory, as `system_profiler` describes them."""

import functools
import hashlib
import json
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psutil

from flatout.hardware.command import RunTool, run_tool
from flatout.hardware.protocol import Discovery, Problem
from flatout.records.device import Device, DeviceSample, Vendor
from flatout.records.unknown import Readings

TIMEOUT_S = 30.0
_COMMAND = ("system_profiler", "SPDisplaysDataType", "SPHardwareDataType", "-json")
_FIX = "system_profiler SPDisplaysDataType SPHardwareDataType -json   # run it by hand"
_UNITS = {"MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
_FOR_ROOT = "macOS tells it only to root, through `powermetrics`"
_HIDDEN = (
    *("kernel_running_share", "memory_bus_active_share", "clock_compute_hz", "power_draw_mw"),
    *("temperature_c", "processes", "throttle_reasons"),
)


class AppleSource:
    """Apple's GPU of this Mac; none anywhere else. `memory` answers like `psutil.virtual_memory`."""

    def __init__(
        self,
        run: RunTool = run_tool,
        *,
        platform: str = sys.platform,
        memory: Callable[[], Any] = psutil.virtual_memory,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._run = run
        self._platform = platform
        self._memory = memory
        self._clock = clock

    @property
    def vendor(self) -> Vendor:
        """Whose devices these are."""
        return "apple"

    def discover(self) -> Discovery:
        """The GPUs of Apple's make. An Intel Mac has none, whatever card is in it."""
        if self._platform != "darwin":
            return Discovery(absent_reason="this machine does not run macOS")
        output = self._run(_COMMAND, timeout_s=TIMEOUT_S)
        if output.text is None:
            return _unreadable(output.reason)
        try:
            found = json.loads(output.text)
            gpus = [gpu for gpu in found["SPDisplaysDataType"] if isinstance(gpu, dict)]
            hardware: Mapping[str, Any] = next(iter(found.get("SPHardwareDataType", ())), {})
        except (*_ERRORS, RecursionError):
            begin = " ".join(output.text.split())[:80]
            return _unreadable(f"system_profiler printed no list of GPUs (it begins with {begin!r})")
        apples = [gpu for gpu in gpus if _is_apple(gpu)]
        if not apples:
            names = ", ".join(_name(gpu) for gpu in gpus) or "none"
            return Discovery(absent_reason=f"no GPU of this Mac is Apple's (found: {names})")
        return Discovery(devices=tuple(_device(index, gpu, hardware) for index, gpu in enumerate(apples)))

    def sample(self, devices: Sequence[Device], *, thoroughly: bool = True) -> list[DeviceSample]:  # noqa: ARG002
        """One sample for each of these devices: the memory, which is the machine's."""
        readings = Readings((*_ERRORS, OSError, psutil.Error))
        memory = functools.cache(self._memory)  # one snapshot, so that the two add up to the total
        readings.read("memory_used_bytes", lambda: int(memory().total - memory().available))
        readings.read("memory_free_bytes", lambda: int(memory().available))
        for field in _HIDDEN:
            readings.absent(field, _FOR_ROOT)
        return [
            DeviceSample(
                index=device.index,
                uuid=device.uuid,
                taken_at_unix_s=self._clock(),
                unknown=dict(readings.unknown),
                **readings.values,
            )
            for device in devices
        ]

    def close(self) -> None:
        """Nothing is held open."""


def _unreadable(evidence: str) -> Discovery:
    return Discovery(problems=(Problem(code="apple.unreadable", evidence=evidence, fix=_FIX),))


def _device(index: int, gpu: Mapping[str, Any], hardware: Mapping[str, Any]) -> Device:
    readings = Readings(_ERRORS, _describe)
    readings.read("memory_total_bytes", lambda: _bytes(hardware["physical_memory"]))
    readings.read("core_count", lambda: int(gpu["sppci_cores"]), valid=lambda found: found > 0)
    readings.read("uuid", lambda: _identifier(hardware["platform_UUID"], index))
    readings.read("architecture", lambda: _after(gpu["spdisplays_metalfamily"], "spdisplays_mtlgpufamily"))
    readings.read("runtime_version", lambda: _metal(gpu))
    readings.absent("driver_version", "the driver is a part of macOS")
    readings.absent("pci_bus_id", "the GPU is a part of the chip, not on a PCI bus")
    return Device(
        index=index,
        vendor="apple",
        name=_name(gpu),
        memory_source="system_profiler, shared with the CPU",
        unified_memory=True,
        unknown=readings.unknown,
        **readings.values,
    )


def _is_apple(gpu: Mapping[str, Any]) -> bool:
    vendor = str(gpu.get("spdisplays_vendor", ""))
    return vendor.endswith("_Apple") or (not vendor and _name(gpu).startswith("Apple "))


def _name(gpu: Mapping[str, Any]) -> str:
    """The model; `_name` is a resource key such as kHW_AppleM1Item in older systems."""
    return str(gpu.get("sppci_model") or gpu.get("_name") or "Apple GPU")


def _bytes(text: str) -> int:
    """Bytes from a text such as "36 GB", by which macOS means 2^30."""
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?) (MB|GB|TB)", text)
    if not found:
        raise ValueError(f"system_profiler reports {text!r}, which is not a size of memory")
    return round(float(found[1]) * _UNITS[found[2]])


def _identifier(platform_uuid: str, index: int) -> str:
    """Stable for this GPU, without giving away the Mac's own identifier."""
    return f"APPLE-{hashlib.sha256(f'{platform_uuid}/{index}'.encode()).hexdigest()[:16]}"


def _metal(gpu: Mapping[str, Any]) -> str:
    """ "Metal 3" from spdisplays_metal3."""
    return f"Metal {_after(gpu['spdisplays_mtlgpufamilysupport'], 'spdisplays_metal')}"


def _after(text: str, prefix: str) -> str:
    if not text.startswith(prefix) or text == prefix:
        raise ValueError(f"system_profiler reports {text!r}, which is not understood")
    return text.removeprefix(prefix)


def _describe(error: Exception) -> str:
    return f"system_profiler does not report {error}" if isinstance(error, KeyError) else str(error)
