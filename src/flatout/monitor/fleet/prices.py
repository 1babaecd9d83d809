"""What each GPU costs an hour: as its exporter says, else by its name in the price list."""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cache

from flatout.hardware.catalogue import price_table, rated_for
from flatout.records.device import Device, Vendor
from flatout.records.fleet import FleetDevice

_VENDORS: tuple[Vendor, ...] = ("nvidia", "amd", "intel", "apple")


def with_prices(devices: Sequence[FleetDevice]) -> tuple[list[FleetDevice], str]:
    """The same devices with prices, and where those come from, in words."""
    # One that is gone tells no price: its like do.
    alike = {device.name: device.usd_per_hour for device in devices if device.usd_per_hour is not None}
    priced = [_priced(device, alike) for device in devices]
    told = sum(device.usd_per_hour is not None and device.price_source == "its exporter" for device in priced)
    listed = sum(device.usd_per_hour is not None for device in priced) - told
    words = []
    if told:
        words.append("as exporters tell them")
    if listed:
        words.append(f"the lowest on-demand price of a list of {price_table().as_of} (yours: FLATOUT_PRICES)")
    return priced, "; ".join(words)


def _priced(device: FleetDevice, alike: Mapping[str, float]) -> FleetDevice:
    if device.usd_per_hour is not None:
        return device
    if (like := alike.get(device.name)) is not None:
        return dataclasses.replace(device, usd_per_hour=like, price_source="its exporter")
    listed = _listed(device.name, device.memory_total_bytes)
    if listed is None:
        unknown = {**device.unknown, "usd_per_hour": f"no price is listed for {device.name or 'its model'}"}
        return dataclasses.replace(device, price_source="", unknown=unknown)
    return dataclasses.replace(device, usd_per_hour=listed, price_source="the price list")


@cache
def _listed(name: str, memory_bytes: float | None) -> float | None:
    total = None if memory_bytes is None else int(memory_bytes)
    for vendor in _VENDORS:
        rated = rated_for(Device(index=0, vendor=vendor, name=name, memory_total_bytes=total))
        if rated is not None:
            cheapest = price_table().cheapest(rated.id)
            return cheapest.usd_per_gpu_hour if cheapest else None
    return None
