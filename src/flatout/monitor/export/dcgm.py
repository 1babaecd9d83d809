"""The names under which NVIDIA's dcgm-exporter tells the same, for dashboards that were made for it.

Units are theirs: MHz, MiB, percent, millijoules. What we do not measure is absent.
"""

import dataclasses
from collections.abc import Callable, Iterator

from prometheus_client.core import Metric

from flatout.monitor.export.family import Family, Kind, MetricSpec
from flatout.monitor.export.labels import label
from flatout.monitor.export.look import Look
from flatout.records.device import Device, DeviceSample

_LABELS = ("gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname", "DCGM_FI_DRIVER_VERSION")
_MIB = 1 << 20


@dataclasses.dataclass(frozen=True)
class DcgmMetric:
    """A field of DCGM, from a sample of ours."""

    spec: MetricSpec
    value: Callable[[DeviceSample], float | None]


def _field(
    name: str, text: str, value: Callable[[DeviceSample], float | None], kind: Kind = "gauge"
) -> DcgmMetric:
    return DcgmMetric(MetricSpec(f"DCGM_FI_{name}", kind, text, _LABELS), value)


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _last_xid(sample: DeviceSample) -> float | None:
    """Theirs is 0 where there was none."""
    return 0.0 if sample.xid_last is None and sample.xid_count == 0 else sample.xid_last


# Their counters do not end in _total, as counters must in OpenMetrics: here they have no type.
DCGM_METRICS: tuple[DcgmMetric, ...] = (
    _field("DEV_SM_CLOCK", "SM clock (MHz).", lambda s: _times(s.clock_compute_hz, 1e-6)),
    _field("DEV_MEM_CLOCK", "Memory clock (MHz).", lambda s: _times(s.clock_memory_hz, 1e-6)),
    _field("DEV_MEMORY_TEMP", "Memory temperature (C).", lambda s: s.temperature_memory_c),
    _field("DEV_GPU_TEMP", "GPU temperature (C).", lambda s: s.temperature_c),
    _field("DEV_POWER_USAGE", "Power draw (W).", lambda s: _times(s.power_draw_mw, 1e-3)),
    _field(
        "DEV_TOTAL_ENERGY_CONSUMPTION",
        "Energy since the driver was loaded (mJ).",
        lambda s: s.energy_total_mj,
        "unknown",
    ),
    _field("DEV_GPU_UTIL", "Time with a kernel (%).", lambda s: _times(s.kernel_running_share, 100)),
    _field(
        "DEV_MEM_COPY_UTIL", "Time with memory traffic (%).", lambda s: _times(s.memory_bus_active_share, 100)
    ),
    _field("DEV_XID_ERRORS", "Number of the last Xid.", _last_xid),
    _field("DEV_FB_FREE", "Memory free (MiB).", lambda s: _times(s.memory_free_bytes, 1 / _MIB)),
    _field("DEV_FB_USED", "Memory used (MiB).", lambda s: _times(s.memory_used_bytes, 1 / _MIB)),
    _field(
        "DEV_ECC_DBE_VOL_TOTAL",
        "Uncorrected memory errors since boot.",
        lambda s: s.ecc_uncorrected_since_boot,
        "unknown",
    ),
    _field("PROF_SM_ACTIVE", "Share of SMs with work.", lambda s: s.sm_active_share),
    _field("PROF_SM_OCCUPANCY", "Warps on SMs, of those they can hold.", lambda s: s.sm_occupancy_share),
    _field("PROF_PIPE_TENSOR_ACTIVE", "Tensor cores at work.", lambda s: s.tensor_active_share),
    _field("PROF_DRAM_ACTIVE", "Memory bandwidth in use.", lambda s: s.memory_bandwidth_share),
)


def collect_dcgm(look: Look) -> Iterator[Metric]:
    """NVIDIA's GPUs, as dcgm-exporter would tell of them."""
    labelled = [
        (_labels_of(gpu.device, look.frame.host), gpu.sample)
        for gpu in look.gpus
        if gpu.device.vendor == "nvidia" and gpu.is_up
    ]
    for metric in DCGM_METRICS:
        family = Family(metric.spec)
        for labels, sample in labelled:
            family.add(labels, metric.value(sample))
        yield family.metric


def _labels_of(device: Device, host: str) -> tuple[str, ...]:
    return (
        str(device.index),
        label(device.uuid or ""),
        label(device.pci_bus_id or ""),
        f"nvidia{device.index}",
        label(device.name),
        label(host),
        label(device.driver_version or ""),
    )
