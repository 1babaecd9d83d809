"""Which device to measure: what the user typed, or the first GPU that a job would see, or the CPU."""

import dataclasses
import os
from collections.abc import Mapping, Sequence

from flatout.hardware.visible import visible_cuda_devices
from flatout.records.device import Device
from flatout.records.errors import UnknownName


@dataclasses.dataclass(frozen=True)
class Target:
    """A physical device, what torch calls it in the child, and the variables that make it the only one."""

    device: Device
    torch_device: str
    environment: dict[str, str]


def choose_target(
    devices: Sequence[Device], wanted: str | None, environment: Mapping[str, str] | None = None
) -> Target:
    """The target for `wanted` ("cuda:1", "cpu", "mps", "xpu:0", a UUID), or the default."""
    environment = os.environ if environment is None else environment
    named = _named(devices, environment)
    if wanted is None:
        return next(iter(named.values()))
    aliases = {"cuda": "cuda:0", "xpu": "xpu:0", "gpu": next(iter(named))}
    key = aliases.get(wanted.lower(), wanted)
    if key in named:
        return named[key]
    by_uuid = [
        t for t in named.values() if t.device.uuid and t.device.uuid.lower().startswith(wanted.lower())
    ]
    if len(by_uuid) == 1 and len(wanted) > 4:
        return by_uuid[0]
    raise UnknownName("device", wanted, named)


def _named(devices: Sequence[Device], environment: Mapping[str, str]) -> dict[str, Target]:
    """Every target by torch's name for it, GPUs first."""
    found: dict[str, Target] = {}
    visible = visible_cuda_devices(devices, environment).devices
    if visible is None:  # an order that only CUDA knows: number them by PCI bus, and say so to CUDA
        visible = tuple(device for device in devices if device.vendor == "nvidia")
    for order, device in enumerate(visible):
        # The child sees this one alone, by UUID, so that no numbering can pick another card.
        alone = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": device.uuid or str(device.index)}
        found[f"cuda:{order}"] = Target(device, "cuda:0", alone)
    amd = [device for device in devices if device.vendor == "amd"]
    for order, device in enumerate(amd):
        found.setdefault(f"cuda:{order}", Target(device, f"cuda:{order}", {}))
    for order, device in enumerate(device for device in devices if device.vendor == "intel"):
        found[f"xpu:{order}"] = Target(device, f"xpu:{order}", {})
    for device in devices:
        if device.vendor == "apple":
            found["mps"] = Target(device, "mps", {})
        elif device.vendor == "cpu":
            found["cpu"] = Target(device, "cpu", {"CUDA_VISIBLE_DEVICES": ""})
    return found
