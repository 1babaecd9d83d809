"""Reads Intel GPUs from the kernel's sysfs, for machines without xpu-smi."""

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from flatout.hardware.plausible import is_heat, is_power
from flatout.records.device import Device, DeviceSample
from flatout.records.unknown import Readings

_INTEL = "0x8086"
# The address that every integrated Intel GPU has; discrete ones sit behind a bridge.
_INTEGRATED = "0000:00:02.0"
_ERRORS = (OSError, ValueError)
_NO_ACTIVITY = "sysfs does not tell; `xpu-smi` does"


class Sysfs:
    """The Intel GPUs under `/sys/class/drm`. `root` is `/sys`, or a test's copy of it."""

    def __init__(
        self,
        root: Path,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root = root
        self._clock = clock
        self._monotonic = monotonic
        self._energy: dict[int, tuple[int, float]] = {}

    def devices(self) -> tuple[Device, ...]:
        """Discrete GPUs, and integrated ones that the xe driver runs; the older ones are not for compute."""
        found = []
        for card in self._root.glob("class/drm/card*"):
            number = re.fullmatch(r"card(\d{1,6})", card.name)
            if number and _read(card / "device/vendor") == _INTEL:
                found.append((int(number[1]), card))
        return tuple(
            self._device(index, card)
            for index, card in sorted(found)
            if _address(card) != _INTEGRATED or _driver(card) == "xe"
        )

    def samples(self, devices: Sequence[Device]) -> list[DeviceSample]:
        """One instant of each of these devices."""
        return [self._sample(device) for device in devices]

    def _device(self, index: int, card: Path) -> Device:
        readings = Readings(_ERRORS, _describe)
        integrated = _address(card) == _INTEGRATED
        if integrated:
            readings.absent("memory_total_bytes", "an integrated GPU uses the machine's memory")
        else:
            readings.read("memory_total_bytes", lambda: _memory_total(card), valid=lambda found: found > 0)
        readings.absent("uuid", "sysfs has no identifier of the card")
        readings.give("pci_bus_id", _address(card))
        readings.give("driver_version", self._driver_version(_driver(card)))
        # Behind their bridge, discrete cards claim a 2.5 GT/s link of one lane, whatever the slot gives.
        readings.absent("pcie_generation_max", "sysfs shows the link inside the card, not the slot's")
        readings.absent("pcie_width_max", "sysfs shows the link inside the card, not the slot's")
        readings.read(
            "clock_compute_max_hz", lambda: _clock_hz(card, _CLOCKS_MAX), valid=lambda found: found > 0
        )
        readings.read(
            "power_limit_default_mw", lambda: _hwmon(card, "power1_rated_max") // 1000, valid=is_power
        )
        return Device(
            index=index,
            vendor="intel",
            name=f"Intel GPU {_read(card / 'device/device')}".strip(),
            memory_source="sysfs",
            unified_memory=integrated,
            unknown=readings.unknown,
            **readings.values,
        )

    def _driver_version(self, driver: str) -> str:
        version = _read(self._root / "module" / driver / "version") if driver else ""
        return f"{driver or 'no driver'} {version or '(in the kernel)'}"

    def _sample(self, device: Device) -> DeviceSample:
        card = self._root / f"class/drm/card{device.index}"
        taken_at = self._clock()
        if _read(card / "device/vendor") != _INTEL:
            return DeviceSample(
                index=device.index,
                uuid=device.uuid,
                taken_at_unix_s=taken_at,
                state="down",
                state_reason=f"{card} is gone",
            )
        readings = Readings(_ERRORS, _describe)
        self._read_power(readings, card, device.index)
        _read_memory(readings, card, device.memory_total_bytes)
        readings.read("clock_compute_hz", lambda: _clock_hz(card, _CLOCKS_NOW), valid=lambda found: found > 0)
        readings.read("temperature_c", lambda: _temperature_c(card, "pkg", "temp1_input"), valid=is_heat)
        readings.read("temperature_memory_c", lambda: _temperature_c(card, "vram", ""), valid=is_heat)
        for field in ("kernel_running_share", "memory_bus_active_share", "processes"):
            readings.absent(field, _NO_ACTIVITY)
        return DeviceSample(
            index=device.index,
            uuid=device.uuid,
            taken_at_unix_s=taken_at,
            unknown=readings.unknown,
            **readings.values,
        )

    def _read_power(self, readings: Readings, card: Path, index: int) -> None:
        """Power is the energy counter's growth since the sample before: the drivers show no power."""
        # 0 means that the limit is turned off, which is not a limit of 0 W.
        readings.read("power_limit_mw", lambda: _hwmon(card, "power1_max") // 1000, valid=is_power)
        energy_uj = readings.read("energy_total_mj", lambda: _energy_uj(card), valid=lambda found: found > 0)
        if energy_uj is None:
            readings.absent("power_draw_mw", readings.unknown["energy_total_mj"])
            return
        readings.give("energy_total_mj", energy_uj // 1000)
        now = self._monotonic()
        before, self._energy[index] = self._energy.get(index), (energy_uj, now)
        if before is None or now <= before[1]:
            readings.absent(
                "power_draw_mw", "known from the second sample on: it is the growth of energy_total_mj"
            )
            return
        readings.read(
            "power_draw_mw",
            lambda: round((energy_uj - before[0]) / 1000 / (now - before[1])),
            valid=lambda found: 0 <= found < 10_000_000,
        )


# i915 first, then xe: below the card and below its device. Actual clocks read 0 while the GPU sleeps.
_CLOCKS_NOW = (
    *("gt_act_freq_mhz", "device/tile0/gt0/freq0/act_freq"),
    *("gt_cur_freq_mhz", "device/tile0/gt0/freq0/cur_freq"),
)
_CLOCKS_MAX = ("gt_RP0_freq_mhz", "gt_max_freq_mhz", "device/tile0/gt0/freq0/rp0_freq")


def _clock_hz(card: Path, names: Sequence[str]) -> int:
    for name in names:
        text = _read(card / name)
        if text.isdecimal() and int(text) > 0:
            return int(text) * 1_000_000
    raise ValueError(f"no clock in any of {', '.join(names)}")


def _memory_total(card: Path) -> int:
    tiles = [int(path.read_text()) for path in sorted(card.glob("device/tile*/physical_vram_size_bytes"))]
    return sum(tiles) if tiles else int((card / "lmem_total_bytes").read_text())


def _read_memory(readings: Readings, card: Path, total: int | None) -> None:
    free = readings.read("memory_free_bytes", lambda: int((card / "lmem_avail_bytes").read_text()))
    if free is None or total is None or free > total:
        readings.absent("memory_used_bytes", "needs the free memory and the total, which this driver hides")
    else:
        readings.give("memory_used_bytes", total - free)


def _energy_uj(card: Path) -> int:
    """The card's counter, or its package's where the card has none."""
    try:
        return _hwmon(card, "energy1_input")
    except _ERRORS:
        return _hwmon(card, "energy2_input")


def _hwmon(card: Path, name: str) -> int:
    for path in sorted(card.glob(f"device/hwmon/hwmon*/{name}")):
        return int(path.read_text())
    raise ValueError(f"the driver has no hwmon file {name}")


def _temperature_c(card: Path, label: str, unlabelled: str) -> int:
    """The sensor of that label, in degrees; or the one that drivers without labels have."""
    for path in sorted(card.glob("device/hwmon/hwmon*/temp*_label")):
        if _read(path) == label:
            return round(int(path.with_name(path.name.replace("_label", "_input")).read_text()) / 1000)
    if not unlabelled:
        raise ValueError(f"the driver has no temperature sensor called {label}")
    return round(_hwmon(card, unlabelled) / 1000)


def _read(path: Path) -> str:
    """A file's text, or nothing."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _address(card: Path) -> str:
    return (card / "device").resolve().name


def _driver(card: Path) -> str:
    link = card / "device/driver"
    return link.resolve().name if link.exists() else ""


def _describe(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename or 'the file'}: {error.strerror or error}"
    return str(error)
