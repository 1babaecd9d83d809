"""What a device is (`Device`) and what it is doing at one instant (`DeviceSample`).

Shares are fractions from 0 to 1. Each one is named for what it measures: NVML's "GPU utilization" only
says that some kernel ran, so here it is `kernel_running_share`.
"""

import dataclasses
from typing import Literal

from flatout.records.unknown import fill_reasons

Vendor = Literal["nvidia", "amd", "apple", "intel", "cpu"]

DeviceState = Literal["up", "stale", "down"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Device:
    """Identity and fixed properties; nothing here changes while the machine runs."""

    index: int
    vendor: Vendor
    name: str
    uuid: str | None = None
    memory_total_bytes: int | None = None
    memory_source: str = ""
    unified_memory: bool = False
    architecture: str | None = None
    compute_capability: str | None = None
    driver_version: str | None = None
    runtime_version: str | None = None
    core_count: int | None = None
    pci_bus_id: str | None = None
    pcie_generation_max: int | None = None
    pcie_width_max: int | None = None
    clock_compute_max_hz: int | None = None
    clock_memory_max_hz: int | None = None
    power_limit_default_mw: int | None = None
    power_limit_min_mw: int | None = None
    power_limit_max_mw: int | None = None
    temperature_slowdown_c: int | None = None
    temperature_shutdown_c: int | None = None
    mig_enabled: bool | None = None
    parent_uuid: str = ""
    mig_slot: str = ""
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceProcess:
    """A process that holds memory on a device. `name` and `user` are None where it is not ours to see."""

    pid: int
    kind: Literal["compute", "graphics", "unknown"] = "unknown"
    memory_bytes: int | None = None
    name: str | None = None
    user: str | None = None
    age_s: float | None = None
    # The largest share of the last seconds in which it had a kernel running.
    active_share: float | None = None
    # Whether there is no such process any more; None where its pid may be of another namespace.
    gone: bool | None = None
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GpuLink:
    """One direct link to another GPU or a switch (NVLink, Infinity Fabric, Xe Link)."""

    link: int
    active: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceSample:
    """One instant of one device. A stale sample is the last good one, with its own older time."""

    index: int
    uuid: str | None
    taken_at_unix_s: float
    state: DeviceState = "up"
    state_reason: str = ""

    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None

    # Activity, each named for what it measures. NVML and GPM measure over their own recent window.
    kernel_running_share: float | None = None
    memory_bus_active_share: float | None = None
    memory_bandwidth_share: float | None = None
    sm_active_share: float | None = None
    sm_occupancy_share: float | None = None
    tensor_active_share: float | None = None
    activity_source: str = ""

    clock_compute_hz: int | None = None
    clock_memory_hz: int | None = None
    performance_state: int | None = None
    throttle_reasons: tuple[str, ...] | None = None

    power_draw_mw: int | None = None
    power_limit_mw: int | None = None
    energy_total_mj: int | None = None
    temperature_c: int | None = None
    temperature_memory_c: int | None = None
    fan_speed_share: float | None = None

    pcie_generation: int | None = None
    pcie_width: int | None = None
    pcie_sent_bytes_per_s: int | None = None
    pcie_received_bytes_per_s: int | None = None
    gpu_links: tuple[GpuLink, ...] | None = None

    ecc_enabled: bool | None = None
    ecc_corrected_since_boot: int | None = None
    ecc_uncorrected_since_boot: int | None = None
    ecc_uncorrected_lifetime: int | None = None
    memory_rows_remapped: int | None = None
    memory_repair_pending: bool | None = None
    memory_repair_failed: bool | None = None
    xid_count: int | None = None
    xid_last: int | None = None

    persistence_mode: bool | None = None
    compute_mode: str | None = None
    processes: tuple[DeviceProcess, ...] | None = None

    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self)
