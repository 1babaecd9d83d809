"""Reads Intel GPUs through the `xpu-smi` command, whose JSON differs between its versions 1 and 2."""

import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from flatout.hardware.command import RunTool
from flatout.records.device import Device, DeviceSample
from flatout.records.unknown import Readings, is_sentinel

NOT_INSTALLED = "xpu-smi is not installed"
TIMEOUT_S = 15.0
_ACTIVITY_SOURCE = "xpu-smi GPU utilization, averaged over all engines"
# Also what JSON of an unexpected shape runs into.
_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class XpuSmiFailed(Exception):
    """xpu-smi gave nothing that can be used; the message says why."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Metric:
    """One field of a sample: what each version calls it, its unit, and how tiles add up to the card."""

    field: str
    version_1: str
    version_2: tuple[str, str]
    over_tiles: Callable[[Iterable[float]], float]
    scale: float = 1
    least: float = 0
    most: float
    whole: bool = True


_METRICS = (
    _Metric(
        field="kernel_running_share",
        version_1="XPUM_STATS_GPU_UTILIZATION",
        version_2=("utilization", "gpu_percent"),
        over_tiles=statistics.fmean,
        scale=0.01,
        most=100,
        whole=False,
    ),
    _Metric(
        field="memory_bus_active_share",
        version_1="XPUM_STATS_MEMORY_BANDWIDTH",
        version_2=("memory", "bandwidth_percent"),
        over_tiles=statistics.fmean,
        scale=0.01,
        most=100,
        whole=False,
    ),
    _Metric(
        field="power_draw_mw",
        version_1="XPUM_STATS_POWER",
        version_2=("power", "gpu_power_w"),
        over_tiles=sum,
        scale=1000,
        least=0.001,
        most=10_000,
    ),
    _Metric(
        field="clock_compute_hz",
        version_1="XPUM_STATS_GPU_FREQUENCY",
        version_2=("frequency", "gpu_frequency_mhz"),
        over_tiles=max,
        scale=1_000_000,
        most=10_000,
    ),
    _Metric(
        field="temperature_c",
        version_1="XPUM_STATS_GPU_CORE_TEMPERATURE",
        version_2=("temperature", "gpu_core_celsius"),
        over_tiles=max,
        least=1,
        most=200,
    ),
    _Metric(
        field="temperature_memory_c",
        version_1="XPUM_STATS_MEMORY_TEMPERATURE",
        version_2=("temperature", "memory_celsius"),
        over_tiles=max,
        least=1,
        most=200,
    ),
    _Metric(
        field="memory_used_bytes",
        version_1="XPUM_STATS_MEMORY_USED",
        version_2=("memory", "used_mib"),
        over_tiles=sum,
        scale=1 << 20,
        most=1 << 24,
    ),
)


class XpuSmi:
    """The devices that xpu-smi lists."""

    def __init__(self, run: RunTool, *, clock: Callable[[], float] = time.time) -> None:
        self._run = run
        self._clock = clock

    def devices(self) -> tuple[Device, ...]:
        """Every GPU with its fixed properties; none where xpu-smi finds none. Raises XpuSmiFailed."""
        listed = self._ask("discovery", "-j").get("device_list")
        if not isinstance(listed, list):  # version 2 puts null or a sentence where there is no device
            return ()
        return tuple(self._device(entry) for entry in listed if isinstance(entry, dict))

    def samples(self, devices: Sequence[Device]) -> list[DeviceSample]:
        """One instant of each of these devices."""
        return [self._sample(device) for device in devices]

    def _device(self, entry: Mapping[str, Any]) -> Device:
        try:
            index = int(entry["device_id"])
        except _ERRORS as error:
            raise XpuSmiFailed(f"xpu-smi lists a device without a number ({entry!r:.80})") from error
        try:
            facts = {**entry, **self._ask("discovery", "-d", str(index), "-j")}
            why = "xpu-smi does not report it"
        except XpuSmiFailed as error:
            facts, why = dict(entry), str(error)
        readings = _identity(facts, why)
        name = _text(facts, "device_name", "")
        return Device(
            index=index,
            vendor="intel",
            name=name or f"Intel GPU {facts.get('pci_device_id', '')}".strip(),
            memory_source="xpu-smi",
            unknown=readings.unknown,
            **readings.values,
        )

    def _sample(self, device: Device) -> DeviceSample:
        taken_at = self._clock()
        common: dict[str, Any] = {"index": device.index, "uuid": device.uuid, "taken_at_unix_s": taken_at}
        try:
            stats = self._ask("stats", "-d", str(device.index), "-j")
        except XpuSmiFailed as error:
            return DeviceSample(**common, state="down", state_reason=str(error))
        readings = Readings(_ERRORS, _describe)
        for metric in _METRICS:
            _read_metric(readings, stats, metric)
        if not any(value is not None for value in readings.values.values()):
            reason = readings.unknown["memory_used_bytes"]
            return DeviceSample(**common, state="down", state_reason=reason, unknown=readings.unknown)
        used = readings.values["memory_used_bytes"]
        if used is None or device.memory_total_bytes is None or used > device.memory_total_bytes:
            readings.absent("memory_free_bytes", "needs the memory in use and the total")
        else:
            readings.give("memory_free_bytes", device.memory_total_bytes - used)
        return DeviceSample(
            **common, activity_source=_ACTIVITY_SOURCE, unknown=readings.unknown, **readings.values
        )

    def _ask(self, *arguments: str) -> dict[str, Any]:
        output = self._run(("xpu-smi", *arguments), timeout_s=TIMEOUT_S)
        if output.text is None:
            raise XpuSmiFailed(output.reason)
        try:
            found = json.loads(output.text)
        except (ValueError, RecursionError) as error:
            begin = " ".join(output.text.split())[:80]
            raise XpuSmiFailed(f"xpu-smi printed no readable JSON (it begins with {begin!r})") from error
        if not isinstance(found, dict) or not found:
            raise XpuSmiFailed(f"xpu-smi {arguments[0]} printed nothing of use ({found!r:.80})")
        if "error" in found:
            raise XpuSmiFailed(f"xpu-smi answers: {found['error']}")
        return found


def _identity(facts: Mapping[str, Any], why: str) -> Readings:
    readings = Readings(_ERRORS, _describe)
    for field, key in (
        ("uuid", "uuid"),
        ("pci_bus_id", "pci_bdf_address"),
        ("driver_version", "driver_version"),
    ):
        found = _text(facts, key, "")
        if found:
            readings.give(field, found)
        else:
            readings.absent(field, why)
    _read_whole(readings, "memory_total_bytes", facts, "memory_physical_size_byte", why)
    _read_whole(readings, "core_count", facts, "number_of_eus", why)
    _read_whole(readings, "pcie_generation_max", facts, "pcie_generation", why)
    _read_whole(readings, "pcie_width_max", facts, "pcie_max_link_width", why)
    # Version 1 says "2400" under the first name, version 2 "2400 MHz" under the second.
    clock = facts.get("core_clock_rate_mhz") or str(facts.get("core_clock_rate", "")).removesuffix(" MHz")
    _read_whole(readings, "clock_compute_max_hz", {"clock": clock}, "clock", why, scale=1_000_000)
    return readings


def _read_whole(
    readings: Readings, field: str, facts: Mapping[str, Any], key: str, why: str, *, scale: int = 1
) -> None:
    """A positive whole number; xpu-smi says -1, 0, "" or "N/A" where it has none."""
    if _text(facts, key, "") == "":
        readings.absent(field, why)
        return
    readings.read(field, lambda: int(_number(facts[key])) * scale, valid=lambda found: found > 0)


def _read_metric(readings: Readings, stats: Mapping[str, Any], metric: _Metric) -> None:
    def value() -> float:
        found = _values(stats, metric)
        if not found:
            raise LookupError("xpu-smi does not report it (it can need root, or a newer driver)")
        if not all(metric.least <= one <= metric.most for one in found):
            raise ValueError(f"xpu-smi returned an impossible value ({found})")
        total = metric.over_tiles(found) * metric.scale
        return round(total) if metric.whole else total

    readings.read(metric.field, value)


def _values(stats: Mapping[str, Any], metric: _Metric) -> list[float]:
    """The card's own value, or one for each tile."""
    if "device_level" not in stats:
        part, key = metric.version_2
        tiles = stats.get(part, {}).get(key, {})
        return [_number(one["current"] if isinstance(one, dict) else one) for one in tiles.values()]
    own = _listed(stats["device_level"], metric.version_1)
    if own:
        return own
    return [
        one for tile in stats.get("tile_level", ()) for one in _listed(tile["data_list"], metric.version_1)
    ]


def _listed(entries: Iterable[Mapping[str, Any]], name: str) -> list[float]:
    return [_number(entry["value"]) for entry in entries if entry.get("metrics_type") == name]


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"xpu-smi returned {value!r:.40} where a number belongs")
    found = int(value) if isinstance(value, str) and value.isdecimal() else float(value)
    if is_sentinel(found):
        raise ValueError("xpu-smi returned a placeholder, not a value")
    return found


def _text(facts: Mapping[str, Any], key: str, default: str) -> str:
    found = str(facts.get(key, default) if facts.get(key) is not None else default).strip()
    return default if found.lower() in ("n/a", "unknown") else found


def _describe(error: Exception) -> str:
    return str(error.args[0]) if error.args else type(error).__name__
