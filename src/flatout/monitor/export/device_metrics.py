"""What is told of each GPU: a table of names, meanings and where the value comes from."""

import dataclasses
from collections.abc import Callable

from flatout.monitor.export.family import PREFIX, MetricSpec
from flatout.records.device import Device, DeviceSample

DEVICE_LABELS = ("gpu", "uuid")
_NAME = PREFIX + "device_"


@dataclasses.dataclass(frozen=True)
class DeviceMetric:
    """A metric with one sample a GPU. One that is not `lasting` is told only while the GPU answers."""

    spec: MetricSpec
    value: Callable[[Device, DeviceSample], float | None]
    lasting: bool = False


def _gauge(
    name: str, text: str, value: Callable[[Device, DeviceSample], float | None], *, lasting: bool = False
) -> DeviceMetric:
    return DeviceMetric(MetricSpec(_NAME + name, "gauge", text, DEVICE_LABELS), value, lasting)


def _counter(name: str, text: str, value: Callable[[Device, DeviceSample], float | None]) -> DeviceMetric:
    return DeviceMetric(MetricSpec(_NAME + name, "counter", text, DEVICE_LABELS), value, lasting=True)


def _computing(sample: DeviceSample) -> int | None:
    """A display server holds a little of its GPU for as long as the machine runs: nobody's job is that."""
    if sample.processes is None:
        return None
    return sum(process.kind != "graphics" for process in sample.processes)


def _thousandth(value: float | None) -> float | None:
    return None if value is None else value / 1000


INFO = MetricSpec(
    _NAME + "info",
    "info",
    "What the GPU is; always 1.",
    DEVICE_LABELS,
    facts=(
        *("vendor", "name", "driver_version", "memory_bytes", "architecture", "compute_capability"),
        *("pci_bus_id", "parent_uuid"),
    ),
)
UP = MetricSpec(
    _NAME + "up",
    "gauge",
    "Whether the GPU answers: 0 when it is lost, or has not answered in time. The rest of it is absent then.",
    DEVICE_LABELS,
)
AGE = MetricSpec(
    _NAME + "sample_age_seconds", "gauge", "How old the newest answer of the GPU is.", DEVICE_LABELS
)
ENERGY = MetricSpec(
    _NAME + "energy_joules_total",
    "counter",
    "Energy by the GPU's own counter; where it has none, by the power it drew since the exporter started.",
    DEVICE_LABELS,
)
THROTTLED = MetricSpec(
    _NAME + "throttled", "gauge", "Whether something holds the clocks down now.", (*DEVICE_LABELS, "reason")
)
THROTTLED_SECONDS = MetricSpec(
    _NAME + "throttled_seconds_total",
    "counter",
    "Time for which the clocks were held down, since the exporter started.",
    (*DEVICE_LABELS, "reason"),
)
PRICE = MetricSpec(
    _NAME + "usd_per_hour", "gauge", "What this GPU costs an hour, by the price table.", DEVICE_LABELS
)

DEVICE_METRICS: tuple[DeviceMetric, ...] = (
    _gauge("memory_used_bytes", "Memory in use.", lambda _, s: s.memory_used_bytes),
    _gauge("memory_total_bytes", "All memory.", lambda d, _: d.memory_total_bytes, lasting=True),
    _gauge(
        "kernel_running_ratio",
        "Share of time in which some kernel ran, however little of the GPU it used: NVML's GPU utilization.",
        lambda _, s: s.kernel_running_share,
    ),
    _gauge("sm_active_ratio", "Share of SMs with work.", lambda _, s: s.sm_active_share),
    _gauge("sm_occupancy_ratio", "Warps on SMs, of those they can hold.", lambda _, s: s.sm_occupancy_share),
    _gauge(
        "tensor_active_ratio",
        "Share of time in which tensor cores worked.",
        lambda _, s: s.tensor_active_share,
    ),
    _gauge("memory_bandwidth_ratio", "Memory bandwidth in use.", lambda _, s: s.memory_bandwidth_share),
    _gauge(
        "memory_bus_active_ratio",
        "Share of time with memory traffic: NVML's memory utilization, which is not occupancy.",
        lambda _, s: s.memory_bus_active_share,
    ),
    _gauge("power_watts", "Power draw.", lambda _, s: _thousandth(s.power_draw_mw)),
    _gauge("power_limit_watts", "Power limit that is set.", lambda _, s: _thousandth(s.power_limit_mw)),
    _gauge(
        "power_limit_default_watts",
        "Power limit that the GPU comes with.",
        lambda d, _: _thousandth(d.power_limit_default_mw),
        lasting=True,
    ),
    _gauge("temperature_celsius", "Temperature of the chip.", lambda _, s: s.temperature_c),
    _gauge(
        "temperature_slowdown_celsius",
        "Temperature at which the hardware slows down.",
        lambda d, _: d.temperature_slowdown_c,
        lasting=True,
    ),
    _gauge("memory_temperature_celsius", "Temperature of the memory.", lambda _, s: s.temperature_memory_c),
    _gauge("clock_compute_hertz", "Clock of the SMs.", lambda _, s: s.clock_compute_hz),
    _gauge(
        "clock_compute_max_hertz",
        "Highest clock of the SMs.",
        lambda d, _: d.clock_compute_max_hz,
        lasting=True,
    ),
    _gauge("clock_memory_hertz", "Clock of the memory.", lambda _, s: s.clock_memory_hz),
    _gauge("fan_ratio", "Fan speed, of its highest.", lambda _, s: s.fan_speed_share),
    _gauge("pcie_generation", "Generation of the PCIe link now.", lambda _, s: s.pcie_generation),
    _gauge("pcie_width", "Lanes of the PCIe link now.", lambda _, s: s.pcie_width),
    _gauge("pcie_sent_bytes_per_second", "Sent over PCIe.", lambda _, s: s.pcie_sent_bytes_per_s),
    _gauge("pcie_received_bytes_per_second", "Received over PCIe.", lambda _, s: s.pcie_received_bytes_per_s),
    _counter("xid_total", "Critical errors (Xid) since the exporter started.", lambda _, s: s.xid_count),
    _gauge("xid_last", "Number of the last critical error (Xid).", lambda _, s: s.xid_last, lasting=True),
    _counter(
        "ecc_uncorrected_total",
        "Memory errors that could not be corrected, since boot.",
        lambda _, s: s.ecc_uncorrected_since_boot,
    ),
    _gauge(
        "processes",
        "Processes that hold memory, as far as the driver lists them; those that only draw are left out.",
        lambda _, s: _computing(s),
    ),
)
