"""What a device can really do, as `limits` measured it, beside what its vendor promises."""

import dataclasses
import datetime as dt

from flatout.records.device import Vendor
from flatout.records.link import RanksLink
from flatout.records.rated import Dtype
from flatout.records.unknown import fill_reasons


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasuredDevice:
    """Which device was measured, with what: the key under which the result is kept."""

    name: str
    torch_device: str
    vendor: Vendor
    uuid: str | None
    index: int | None
    memory_total_bytes: int | None
    driver_version: str | None
    torch_version: str
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MatmulResult:
    """One matrix product, M x K times K x N, in one precision."""

    dtype: Dtype
    m: int
    n: int
    k: int
    flops_per_s: float
    spread_share: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClockState:
    """Clocks and power while measuring; without them a figure cannot be compared with another day's."""

    samples: int
    clock_compute_min_hz: int | None = None
    clock_compute_max_hz: int | None = None
    power_max_mw: int | None = None
    power_limit_mw: int | None = None
    temperature_max_c: int | None = None
    throttle_reasons: tuple[str, ...] | None = None
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """Ceilings. Every rate is a median; a precision that the device lacks is absent, with the reason."""

    matmul_flops_per_s: dict[Dtype, float] = dataclasses.field(default_factory=dict)
    matmul_sustained_flops_per_s: dict[Dtype, float] = dataclasses.field(default_factory=dict)
    memory_bytes_per_s: float | None = None
    memory_copy_bytes_per_s: float | None = None
    memory_read_bytes_per_s: float | None = None
    memory_triad_bytes_per_s: float | None = None
    h2d_pinned_bytes_per_s: float | None = None
    h2d_pageable_bytes_per_s: float | None = None
    d2h_pinned_bytes_per_s: float | None = None
    d2h_pageable_bytes_per_s: float | None = None
    launch_s: float | None = None
    item_s: float | None = None
    graph_node_s: float | None = None
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        singles = [getattr(self, f.name) for f in dataclasses.fields(self) if f.name.endswith("_s")]
        rates = [value for value in singles if isinstance(value, float)]
        rates += [*self.matmul_flops_per_s.values(), *self.matmul_sustained_flops_per_s.values()]
        if any(rate <= 0 for rate in rates):
            raise ValueError("a measured rate that is not above zero")
        fill_reasons(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RatedPeaks:
    """The vendor's dense figures for the measured device."""

    id: str
    name: str
    dense_flops_per_s: dict[Dtype, float]
    memory_bytes_per_s: float
    host_link_bytes_per_s: float | None
    source: str
    source_url: str
    note: str = ""
    # To other GPUs, one way; None where they have no link of their own.
    gpu_link: str = ""
    gpu_link_one_way_bytes_per_s: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceLimits:
    """One device's measured ceilings, with the products they come from and the state they were taken in."""

    device: MeasuredDevice
    measured: Measured
    matmuls: tuple[MatmulResult, ...]
    clocks: ClockState
    took_s: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """The document of `flatout limits`."""

    device: MeasuredDevice
    measured: Measured
    rated: RatedPeaks | None
    rated_reason: str
    matmuls: tuple[MatmulResult, ...]
    clocks: ClockState
    cpu: DeviceLimits | None
    measured_at: dt.datetime
    took_s: float
    method: int
    disturbed: str = ""
    # Between this device and its like; files from before it was measured have none.
    link: RanksLink | None = None
    link_reason: str = "not measured when this was kept"
    from_cache: bool = False
