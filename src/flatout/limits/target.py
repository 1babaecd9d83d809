"""Which device to measure: what the user typed, or the first GPU that a job would see, or the CPU."""

import dataclasses
import os
from collections.abc import Mapping, Sequence

from flatout.hardware.visible import cuda_devices, visible_cuda_devices
from flatout.records.device import Device
from flatout.records.errors import UnknownName


@dataclasses.dataclass(frozen=True)
class Target:
    """A physical device, what torch calls it in the child, and the variables that make it the only one."""

    device: Device
    torch_device: str
    environment: dict[str, str]


def choose_target(
    devices: Sequence[Device],
    wanted: str | None,
    environment: Mapping[str, str] | None = None,
    *,
    torch_version: str = "",
) -> Target:
    """The target for `wanted` ("cuda:1", "cpu", "mps", "xpu:0", a UUID), or the default."""
    environment = os.environ if environment is None else environment
    named = _named(devices, environment)
    if wanted is None:
        # Most laptops have Intel graphics that torch cannot use: only its XPU build makes them a target.
        usable = [t for t in named.values() if t.device.vendor != "intel" or "xpu" in torch_version]
        return usable[0]
    aliases = {"cuda": "cuda:0", "xpu": "xpu:0"}
    key = aliases.get(wanted.lower(), wanted.lower())
    if key in named:
        return named[key]
    # A UUID may name a GPU or a MIG instance that the variables hide: whoever types it means it.
    every = {**named, **{device.uuid or "": _cuda_target(device) for device in cuda_devices(devices)}}
    by_uuid = {t.device.uuid: t for t in every.values() if _starts(t.device.uuid, wanted)}
    if len(by_uuid) == 1 and len(wanted) > len("GPU-"):
        return next(iter(by_uuid.values()))
    kind = key.split(":", maxsplit=1)[0]
    remedy = ""
    if kind in ("cuda", "xpu", "mps") and not any(name.startswith(kind) for name in named):
        remedy = "flatout doctor   # says why there is no such GPU here"
    raise UnknownName("device", wanted, named, remedy=remedy)


def _starts(uuid: str | None, wanted: str) -> bool:
    return uuid is not None and uuid.lower().startswith(wanted.lower())


def _cuda_target(device: Device) -> Target:
    """The child sees this one alone, by UUID, so that no numbering can pick another card."""
    alone = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": device.uuid or str(device.index)}
    return Target(device, "cuda:0", alone)


def _named(devices: Sequence[Device], environment: Mapping[str, str]) -> dict[str, Target]:
    """Every target by torch's name for it, GPUs first."""
    found: dict[str, Target] = {}
    visible = visible_cuda_devices(devices, environment).devices
    if visible is None:  # an order that only CUDA knows: number them by PCI bus, and say so to CUDA
        visible = cuda_devices(devices)
    for order, device in enumerate(visible):
        found[f"cuda:{order}"] = _cuda_target(device)
    for order, device in enumerate(device for device in devices if device.vendor == "amd"):
        # The tools number AMD's cards as ROCm does; the user's variables do not count in the child.
        alone = {"ROCR_VISIBLE_DEVICES": str(device.index), "HIP_VISIBLE_DEVICES": "0"}
        found.setdefault(f"cuda:{order}", Target(device, "cuda:0", {**alone, "CUDA_VISIBLE_DEVICES": "0"}))
    for order, device in enumerate(device for device in devices if device.vendor == "intel"):
        found[f"xpu:{order}"] = Target(device, "xpu:0", {"ZE_AFFINITY_MASK": str(device.index)})
    for device in devices:
        if device.vendor == "apple":
            found["mps"] = Target(device, "mps", {})
        elif device.vendor == "cpu":
            found["cpu"] = Target(device, "cpu", {"CUDA_VISIBLE_DEVICES": ""})
    return found
