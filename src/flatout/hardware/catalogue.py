"""Rated peaks of the GPUs people use, and a dated price table that the user can replace."""

import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path

from flatout.records.config import read_toml
from flatout.records.device import Device
from flatout.records.energy import HourPrice
from flatout.records.errors import BadConfig, UnknownName, nearest
from flatout.records.rated import Catalogue, PriceTable, RatedGpu

PRICES_VARIABLE = "FLATOUT_PRICES"
_SHIPPED = "this file comes with Flatout: reinstall it"


@cache
def catalogue() -> tuple[RatedGpu, ...]:
    """Every GPU that we have figures for, newest first within its vendor."""
    path = Path(str(resources.files("flatout.hardware") / "catalogue.toml"))
    return tuple(read_toml(path, Catalogue, remedy=_SHIPPED).gpu)


def select(names: Sequence[str]) -> list[RatedGpu]:
    """The entries whose id is one of `names` or begins with one; all when there are none."""
    if not names:
        return list(catalogue())
    chosen: list[RatedGpu] = []
    for name in names:
        exact = [entry for entry in catalogue() if entry.id == name.lower()]
        fitting = exact or [entry for entry in catalogue() if name and entry.id.startswith(name.lower())]
        if not fitting:
            raise UnknownName("GPU", name, [entry.id for entry in catalogue()])
        chosen += [entry for entry in fitting if entry not in chosen]
    return chosen


def rated_for(device: Device) -> RatedGpu | None:
    """The catalogue's entry for a device, or None: a wrong peak would be worse than none."""
    if device.parent_uuid:
        return None  # a MIG instance is a part of a card; the card's peak is not its own
    fitting = [
        entry
        for entry in catalogue()
        if entry.vendor == device.vendor and device.name in entry.matches and _fits(entry, device)
    ]
    return fitting[0] if len(fitting) == 1 else None


def _fits(entry: RatedGpu, device: Device) -> bool:
    if entry.match_cores is not None and entry.match_cores != device.core_count:
        return False
    memory = device.memory_total_bytes
    return memory is None or entry.match_memory_bytes_min <= memory <= entry.match_memory_bytes_max


def price_table(path: Path | None = None, environment: Mapping[str, str] | None = None) -> PriceTable:
    """The prices: `path`, or the file that FLATOUT_PRICES names, or the shipped list."""
    environment = os.environ if environment is None else environment
    named = path or (Path(environment[PRICES_VARIABLE]) if environment.get(PRICES_VARIABLE) else None)
    shipped = Path(str(resources.files("flatout.hardware") / "prices.toml"))
    chosen = named or shipped
    table = read_toml(chosen, PriceTable, remedy="flatout gpus --price-template prints a file to start from")
    known = [entry.id for entry in catalogue()]
    for row in table.price:
        if row.gpu not in known:
            raise _unknown_gpu(chosen, row.gpu, known)
    return table


def hour_price(devices: Sequence[Device], table: PriceTable, own_usd: float | None = None) -> HourPrice:
    """What an hour of one of these GPUs costs: the user's own price, or the lowest of the table.

    GPUs of several kinds have their mean price, so that hours times the price stays what is paid.
    """
    if own_usd is None:
        own_usd = table.own_usd_per_gpu_hour
    if own_usd is not None:
        return HourPrice(usd_per_gpu_hour=own_usd, source="your own price")
    if not devices:
        return HourPrice(usd_per_gpu_hour=None, source="no GPU is known to look a price up for")
    found = []
    for device in devices:
        rated = rated_for(device)
        row = table.cheapest(rated.id) if rated is not None else None
        if row is None:
            return HourPrice(usd_per_gpu_hour=None, source=f"no price is listed for {device.name}")
        found.append(row)
    offers = sorted({f"{row.provider} {row.offering}".strip() for row in found})
    return HourPrice(
        usd_per_gpu_hour=sum(row.usd_per_gpu_hour for row in found) / len(found),
        source=f"the lowest listed on {table.as_of}: {', '.join(offers)}",
    )


def price_template() -> str:
    """The shipped price file, as text to save and edit."""
    return (resources.files("flatout.hardware") / "prices.toml").read_text(encoding="utf-8")


def _unknown_gpu(path: Path, name: str, known: list[str]) -> BadConfig:
    lines = path.read_text(encoding="utf-8").split("\n")
    wanted = re.compile(rf"""[^#]*\bgpu\b["']?\s*=\s*["']{re.escape(name)}["']""")
    line = next((number for number, text in enumerate(lines, 1) if wanted.match(text)), None)
    near = nearest(name, known)
    return BadConfig(
        path,
        f"no GPU {name!r} in the catalogue",
        expected="an id that `flatout gpus` lists",
        remedy=f"did you mean {near!r}?" if near else "flatout gpus",
        key="gpu",
        line=line,
    )
