"""What vendors promise: a GPU's rated dense peaks with their source, and what renting one costs."""

import datetime as dt
from typing import Annotated, Literal

import msgspec

from flatout.records.device import Vendor

Dtype = Literal["fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp4"]
Segment = Literal["datacenter", "workstation", "consumer", "laptop", "integrated"]
# The upper bound keeps infinity out, which TOML can write.
Positive = Annotated[float, msgspec.Meta(gt=0, lt=1e300)]
PositiveInt = Annotated[int, msgspec.Meta(gt=0)]


class RatedGpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of the catalogue. Rates are dense; a sparse figure is never here."""

    id: Annotated[str, msgspec.Meta(pattern="^[a-z0-9-]+$")]
    name: str
    vendor: Vendor
    matches: list[str]
    segment: Segment
    architecture: str
    released: int
    memory_bytes: PositiveInt
    memory_bandwidth_bytes_per_s: Positive
    source: str
    source_url: str
    dense_flops_per_s: dict[Dtype, Positive]
    reported_bytes: PositiveInt | None = None
    compute_capability: str = ""
    tdp_w: Positive | None = None
    host_link: str = ""
    host_link_bytes_per_s: Positive | None = None
    gpu_link: str = ""
    gpu_link_bytes_per_s: Positive | None = None
    unified_memory: bool = False
    match_memory_bytes_min: int = 0
    match_memory_bytes_max: int = 1 << 62
    match_cores: int | None = None
    note: str = ""

    @property
    def usable_bytes(self) -> int:
        """What a process finds there, as far as is known."""
        return self.reported_bytes or self.memory_bytes


class Catalogue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The catalogue's file."""

    gpu: list[RatedGpu]


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one GPU costs for an hour, from one provider."""

    gpu: str
    usd_per_gpu_hour: Positive
    provider: str
    offering: str = ""
    source_url: str = ""


class PriceTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The price file: dated, and the user's to replace."""

    as_of: dt.date
    price: list[Price] = []
    # What the user pays for any GPU; it goes before the list.
    own_usd_per_gpu_hour: Positive | None = None
    currency: Literal["USD"] = "USD"
    note: str = ""

    def cheapest(self, gpu: str) -> Price | None:
        """The lowest price for a GPU, or None where nobody in the table rents it out."""
        return min(
            (row for row in self.price if row.gpu == gpu), key=lambda row: row.usd_per_gpu_hour, default=None
        )
