"""Reads AMD GPUs through AMD's own Python library, amdsmi."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from flatout.hardware.amd import conversions
from flatout.hardware.amd.answers import Answers, as_number, describe, errors_of
from flatout.hardware.amd.conversions import (
    is_gfx_target,
    is_lanes,
    is_not_negative,
    is_positive,
    is_share,
)
from flatout.hardware.plausible import is_heat, is_power
from flatout.records.device import Device, DeviceSample
from flatout.records.unknown import Readings

_MIB = 1 << 20
_ACTIVITY_SOURCE = "amdsmi gfx activity"
# A GPU that answers none of these is lost; one that lacks a few is only of another kind.
_VITAL = ("memory_used_bytes", "kernel_running_share", "power_draw_mw", "temperature_c", "clock_compute_hz")


class AmdSmi:
    """An amdsmi session. What `open` raises is in `errors`."""

    def __init__(self, library: Any, *, clock: Callable[[], float] = time.time) -> None:
        self._library = library
        self._clock = clock
        self._handles: list[Any] = []
        self.errors = errors_of(library)

    def open(self) -> None:
        """Start the library and find its GPUs."""
        self._library.amdsmi_init()
        self._handles = list(self._library.amdsmi_get_processor_handles())

    def close(self) -> None:
        """Stop the library; a failure to do so changes nothing for us."""
        try:
            self._library.amdsmi_shut_down()
        except self.errors:
            return

    @property
    def count(self) -> int:
        """How many GPUs the library listed when it was opened."""
        return len(self._handles)

    def device(self, index: int) -> Device:
        """Identity and fixed properties of one GPU."""
        answers = Answers(self._library, self._handles[index])
        readings = Readings(self.errors, describe)
        self._read_identity(readings, answers)
        self._read_limits(readings, answers)
        name = readings.values.pop("name")
        reason = readings.unknown.pop("name", "")
        return Device(
            index=index,
            vendor="amd",
            name=name or f"AMD GPU (name unknown: {reason})",
            memory_source="amdsmi",
            unknown=readings.unknown,
            **readings.values,
        )

    def sample(self, device: Device) -> DeviceSample:
        """One instant of one GPU."""
        taken_at = self._clock()
        if device.index >= self.count:
            return conversions.down(device, taken_at, f"amdsmi lists no GPU with index {device.index}")
        answers = Answers(self._library, self._handles[device.index])
        readings = Readings(self.errors, describe)
        self._read_memory(readings, answers)
        self._read_activity(readings, answers)
        self._read_heat_and_power(readings, answers)
        self._read_link_and_errors(readings, answers)
        readings.read("processes", lambda: conversions.processes(answers))
        if all(readings.values[field] is None for field in _VITAL):
            return conversions.down(device, taken_at, readings.unknown[_VITAL[0]], readings.unknown)
        return DeviceSample(
            index=device.index,
            uuid=device.uuid,
            taken_at_unix_s=taken_at,
            activity_source=_ACTIVITY_SOURCE,
            unknown=readings.unknown,
            **readings.values,
        )

    def _read_identity(self, readings: Readings, answers: Answers) -> None:
        asic, pcie = "amdsmi_get_gpu_asic_info", "amdsmi_get_pcie_info"
        readings.read("name", lambda: answers.text(asic, "market_name"))
        readings.read("uuid", lambda: answers.text("amdsmi_get_gpu_device_uuid"))
        readings.read("pci_bus_id", lambda: answers.text("amdsmi_get_gpu_device_bdf"))
        readings.read("driver_version", lambda: answers.text("amdsmi_get_gpu_driver_info", "driver_version"))
        readings.read("runtime_version", self._rocm_version)
        for field in ("architecture", "compute_capability"):
            readings.read(field, lambda: answers.text(asic, "target_graphics_version"), valid=is_gfx_target)
        readings.read("core_count", lambda: answers.whole(asic, "num_compute_units"), valid=is_positive)
        readings.read("memory_total_bytes", lambda: self._memory(answers, "total"), valid=is_positive)
        readings.read(
            "pcie_generation_max",
            lambda: answers.whole(pcie, "pcie_static", "pcie_interface_version"),
            valid=is_positive,
        )
        readings.read(
            "pcie_width_max", lambda: answers.whole(pcie, "pcie_static", "max_pcie_width"), valid=is_lanes
        )

    def _read_limits(self, readings: Readings, answers: Answers) -> None:
        fastest = partial(self._clock_hz, answers, "max_clk")
        readings.read("clock_compute_max_hz", lambda: fastest("GFX"), valid=is_positive)
        readings.read("clock_memory_max_hz", lambda: fastest("MEM"), valid=is_positive)
        cap = partial(_power_cap_mw, answers)
        readings.read("power_limit_default_mw", lambda: cap("default_power_cap"), valid=is_power)
        # 0 W is the true lower end on some Instinct cards.
        readings.read("power_limit_min_mw", lambda: cap("min_power_cap"), valid=is_not_negative)
        readings.read("power_limit_max_mw", lambda: cap("max_power_cap"), valid=is_power)
        heat = partial(self._heat_c, answers)
        readings.read("temperature_slowdown_c", lambda: heat("CRITICAL"), valid=is_heat)
        readings.read("temperature_shutdown_c", lambda: heat("EMERGENCY"), valid=is_heat)

    def _read_memory(self, readings: Readings, answers: Answers) -> None:
        used = readings.read("memory_used_bytes", lambda: self._memory(answers, "usage"))
        if used is None:
            readings.absent("memory_free_bytes", "the memory in use is not known")
            return
        readings.read(
            "memory_free_bytes",
            lambda: self._memory(answers, "total") - used,
            valid=is_not_negative,
        )

    def _read_activity(self, readings: Readings, answers: Answers) -> None:
        active = partial(answers.number, "amdsmi_get_gpu_activity")
        readings.read("kernel_running_share", lambda: active("gfx_activity") / 100, valid=is_share)
        readings.read("memory_bus_active_share", lambda: active("umc_activity") / 100, valid=is_share)
        now = partial(self._clock_hz, answers, "clk")
        readings.read("clock_compute_hz", lambda: now("GFX"))
        readings.read("clock_memory_hz", lambda: now("MEM"))
        readings.absent("throttle_reasons", "amdsmi needs 100 ms and more to tell, too long for a sample")

    def _read_heat_and_power(self, readings: Readings, answers: Answers) -> None:
        readings.read("power_draw_mw", lambda: conversions.power_draw_mw(answers), valid=is_power)
        readings.read("power_limit_mw", lambda: _power_cap_mw(answers, "power_cap"), valid=is_power)
        readings.read("energy_total_mj", lambda: conversions.energy_mj(answers))
        readings.read("temperature_c", lambda: self._heat_c(answers, "CURRENT"), valid=is_heat)
        readings.read(
            "temperature_memory_c", lambda: self._sensor_c(answers, "VRAM", "CURRENT"), valid=is_heat
        )
        readings.read("fan_speed_share", lambda: conversions.fan_share(answers), valid=is_share)

    def _read_link_and_errors(self, readings: Readings, answers: Answers) -> None:
        ecc = "amdsmi_get_gpu_total_ecc_count"
        readings.read(
            "pcie_width",
            lambda: answers.whole("amdsmi_get_pcie_info", "pcie_metric", "pcie_width"),
            valid=is_lanes,
        )
        readings.read("pcie_generation", lambda: conversions.pcie_generation(answers))
        readings.read("ecc_corrected_since_boot", lambda: answers.whole(ecc, "correctable_count"))
        readings.read("ecc_uncorrected_since_boot", lambda: answers.whole(ecc, "uncorrectable_count"))

    def _rocm_version(self) -> str:
        found, version = self._library.amdsmi_get_rocm_version()
        if not found:
            raise ValueError(str(version))
        return str(version)

    def _memory(self, answers: Answers, what: str) -> int:
        """Bytes of VRAM, from the exact call, or from the one that counts in MiB."""

        def exact() -> int:
            kind = self._library.AmdSmiMemoryType.VRAM
            return round(as_number(answers.get(f"amdsmi_get_gpu_memory_{what}", arguments=(kind,))))

        def in_mib() -> int:
            key = {"total": "vram_total", "usage": "vram_used"}[what]
            return round(as_number(answers.get("amdsmi_get_gpu_vram_usage", key))) * _MIB

        return answers.first(exact, in_mib)

    def _clock_hz(self, answers: Answers, key: str, kind: str) -> int:
        domain = getattr(self._library.AmdSmiClkType, kind)
        return answers.whole("amdsmi_get_clock_info", key, scale=1_000_000, arguments=(domain,))

    def _heat_c(self, answers: Answers, metric: str) -> int:
        """The hotspot, which is what AMD throttles on; the edge sensor where there is no hotspot.

        Limits come from the same sensor as the temperature, or they could not be compared.
        """
        try:
            sensor = "HOTSPOT" if is_heat(self._sensor_c(answers, "HOTSPOT", "CURRENT")) else "EDGE"
        except self.errors:
            sensor = "EDGE"
        return self._sensor_c(answers, sensor, metric)

    def _sensor_c(self, answers: Answers, sensor: str, metric: str) -> int:
        which = getattr(self._library.AmdSmiTemperatureType, sensor)
        what = getattr(self._library.AmdSmiTemperatureMetric, metric)
        return answers.whole("amdsmi_get_temp_metric", arguments=(which, what))


def _power_cap_mw(answers: Answers, key: str) -> int:
    # Power caps are in microwatts, while the power drawn is in watts.
    return answers.whole("amdsmi_get_power_cap_info", key, scale=0.001)
