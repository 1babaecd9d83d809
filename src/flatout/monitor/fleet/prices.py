"""What each GPU costs an hour: as its exporter says, else your own price, else by its name in the list."""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cache

from flatout.hardware.catalogue import hour_price, price_table
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
    if listed and _source() == "your own price":
        words.append(_source())
    elif listed:
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
    return dataclasses.replace(device, usd_per_hour=listed, price_source=_source())


@cache
def _listed(name: str, memory_bytes: float | None) -> float | None:
    total = None if memory_bytes is None else int(memory_bytes)
    table = price_table()
    alike = (Device(index=0, vendor=vendor, name=name, memory_total_bytes=total) for vendor in _VENDORS)
    prices = (hour_price([device], table).usd_per_gpu_hour for device in alike)
    return next((price for price in prices if price is not None), None)


def _source() -> str:
    return "your own price" if price_table().own_usd_per_gpu_hour is not None else "the price list"
