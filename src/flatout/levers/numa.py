"""Which cores are next to which GPU, as Linux tells it."""

import os
import re
from pathlib import Path
from typing import Any

SYSFS = Path("/sys")
_NODE = re.compile(r"node(\d+)")


def nodes(sysfs: Path = SYSFS) -> dict[int, frozenset[int]]:
    """The cores of each NUMA node that has any."""
    found = {}
    folder = sysfs / "devices/system/node"
    for place in sorted(folder.glob("node*")) if folder.is_dir() else ():
        number = _NODE.fullmatch(place.name)
        cores = cores_in(_text(place / "cpulist"))
        if number is not None and cores:
            found[int(number[1])] = cores
    return found


def node_of_gpu(torch: Any, device: Any, sysfs: Path = SYSFS) -> int | None:
    """The node to whose PCI root a CUDA device is attached; None where nobody says."""
    properties = torch.cuda.get_device_properties(device)
    names = ("pci_domain_id", "pci_bus_id", "pci_device_id")
    if not all(hasattr(properties, name) for name in names):
        return None
    domain, bus, slot = (int(getattr(properties, name)) for name in names)
    address = f"{domain:04x}:{bus:02x}:{slot:02x}.0"
    text = _text(sysfs / "bus/pci/devices" / address / "numa_node")
    # Machines with one node, and many virtual ones, say -1.
    return int(text) if text.isdigit() else None


def describe(torch: Any, device: Any, sysfs: Path = SYSFS) -> dict[str, Any] | None:
    """As plain values; None where there is no such thing."""
    if getattr(device, "type", "") != "cuda" or not hasattr(os, "sched_getaffinity"):
        return None
    return {
        "nodes": len(nodes(sysfs)),
        "of_gpu": node_of_gpu(torch, device, sysfs),
        "allowed": len(os.sched_getaffinity(0)),
        "cores": os.cpu_count(),
    }


def cores_in(text: str) -> frozenset[int]:
    """`0-3,8` as numbers."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            return frozenset()
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
