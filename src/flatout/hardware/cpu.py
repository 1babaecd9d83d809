"""The processor and the machine's memory as a device: there is always exactly one."""

import functools
import hashlib
import platform
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from flatout.hardware.command import RunTool, run_tool
from flatout.hardware.protocol import Discovery
from flatout.records.device import Device, DeviceSample, Vendor
from flatout.records.unknown import Readings

TIMEOUT_S = 5.0
# What psutil raises or lacks on one system or another.
_ERRORS = (ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)
_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal", "acpitz")
_NOT_FOR_A_CPU = "it is a reading of GPUs"
_MACHINE_IDS = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))


class CpuSource:
    """The CPU. `system` answers like psutil; the paths are those of Linux."""

    def __init__(
        self,
        run: RunTool = run_tool,
        *,
        system: Any = psutil,
        cpuinfo: Path = Path("/proc/cpuinfo"),
        machine_ids: Sequence[Path] = _MACHINE_IDS,
        platform_name: str = sys.platform,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._run = run
        self._system = system
        self._cpuinfo = cpuinfo
        self._machine_ids = tuple(machine_ids)
        self._platform_name = platform_name
        self._clock = clock
        self._slow: Readings | None = None

    @property
    def vendor(self) -> Vendor:
        """Whose devices these are."""
        return "cpu"

    def discover(self) -> Discovery:
        """The one device."""
        name = self._model_name()
        readings = Readings(_ERRORS, _describe)
        readings.read("memory_total_bytes", lambda: int(self._system.virtual_memory().total), valid=_positive)
        cores = readings.read("core_count", self._cores, valid=_positive)
        readings.read("clock_compute_max_hz", lambda: _hz(self._system.cpu_freq().max), valid=_is_clock)
        readings.give("uuid", self._identifier(name, cores))
        readings.give("architecture", platform.machine() or None)
        for field in ("driver_version", "pci_bus_id", "compute_capability"):
            readings.absent(field, "a CPU has none")
        device = Device(
            index=0,
            vendor="cpu",
            name=name,
            memory_source="psutil",
            unified_memory=False,
            unknown=readings.unknown,
            **readings.values,
        )
        return Discovery(devices=(device,))

    def sample(self, devices: Sequence[Device], *, thoroughly: bool = True) -> list[DeviceSample]:
        """One sample for each of these devices. Clocks and sensors are files, hundreds of them on servers."""
        if thoroughly or self._slow is None:
            self._slow = self._read_slow()
        return [self._sample(device, self._slow) for device in devices]

    def close(self) -> None:
        """Nothing is held open."""

    def _read_slow(self) -> Readings:
        readings = Readings(_ERRORS, _describe)
        readings.read("clock_compute_hz", lambda: _hz(self._system.cpu_freq().current), valid=_is_clock)
        readings.read("temperature_c", lambda: _hottest(self._system.sensors_temperatures()))
        return readings

    def _sample(self, device: Device, slow: Readings) -> DeviceSample:
        readings = Readings(_ERRORS, _describe)
        # One snapshot. Not psutil's `used`: with `available`, used and free add up to the total.
        memory = functools.cache(self._system.virtual_memory)
        readings.read("memory_used_bytes", lambda: int(memory().total - memory().available))
        readings.read("memory_free_bytes", lambda: int(memory().available))
        for field in ("kernel_running_share", "memory_bus_active_share"):
            readings.absent(field, _NOT_FOR_A_CPU)
        return DeviceSample(
            index=device.index,
            uuid=device.uuid,
            taken_at_unix_s=self._clock(),
            unknown={**slow.unknown, **readings.unknown},
            **slow.values,
            **readings.values,
        )

    def _cores(self) -> int:
        found = self._system.cpu_count(logical=False)
        if found is None:
            raise LookupError("the system does not say how many physical cores there are")
        return int(found)

    def _model_name(self) -> str:
        for line in _text(self._cpuinfo).splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
        if self._platform_name == "darwin":
            output = self._run(("sysctl", "-n", "machdep.cpu.brand_string"), timeout_s=TIMEOUT_S)
            if output.text and output.text.strip():
                return output.text.strip()
        return platform.processor() or platform.machine() or "CPU"

    def _identifier(self, name: str, cores: int | None) -> str:
        """The same after every start of this machine; the machine's own identifier cannot be had from it."""
        machine = next(filter(None, map(_text, self._machine_ids)), "")
        digest = hashlib.sha256(f"flatout cpu\n{name}\n{cores}\n{machine.strip()}".encode())
        return f"CPU-{digest.hexdigest()[:16]}"


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _hz(mhz: float) -> int:
    return round(mhz * 1_000_000)


def _hottest(sensors: dict[str, list[Any]]) -> int:
    """The hottest reading of the processor's own sensor."""
    for name in _SENSORS:
        found = [float(entry.current) for entry in sensors.get(name, ()) if 0 < entry.current < 200]
        if found:
            return round(max(found))
    raise LookupError("the system has no temperature sensor of the processor")


def _positive(found: int) -> bool:
    return found > 0


def _is_clock(found: int) -> bool:
    """From 100 MHz to 10 GHz: psutil says 0 for unknown, and on some Macs gigahertz for megahertz."""
    return 100_000_000 <= found <= 10_000_000_000


def _describe(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
