"""Which device to measure: what the user typed, or the first GPU that a job would see, or the CPU."""

import dataclasses
import os
from collections.abc import Mapping, Sequence

from flatout.hardware.visible import CUDA_VARIABLE, Visibility, cuda_devices, visible_cuda_devices
from flatout.hardware.visible_others import (
    HIP_VARIABLE,
    ROCR_VARIABLE,
    visible_amd_devices,
    visible_intel_devices,
)
from flatout.records.device import Device, Vendor
from flatout.records.errors import CallerMistake, UnknownName


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
        _refuse_to_guess(usable[0].device, devices, environment)
        return usable[0]
    aliases = {"cuda": "cuda:0", "xpu": "xpu:0"}
    key = aliases.get(wanted.lower(), wanted.lower())
    if key in named:
        return named[key]
    # A UUID may name a GPU or a MIG instance that the variables hide: whoever types it means it.
    hidden = [_cuda_target(device) for device in cuda_devices(devices)]
    hidden += [_rocm_target(device) for device in devices if device.vendor == "amd"]
    by_uuid = {t.device.uuid: t for t in (*hidden, *named.values()) if _starts(t.device.uuid, wanted)}
    if len(by_uuid) == 1 and len(wanted) > len("GPU-"):
        return next(iter(by_uuid.values()))
    kind = key.split(":", maxsplit=1)[0]
    remedy = ""
    if kind in ("cuda", "xpu", "mps") and not any(name.startswith(kind) for name in named):
        remedy = "flatout doctor   # says why there is no such GPU here"
    raise UnknownName("device", wanted, named, remedy=remedy)


def _refuse_to_guess(first: Device, devices: Sequence[Device], environment: Mapping[str, str]) -> None:
    """Which is the first that a job would see, where a variable says it in words that only a driver knows."""
    seen = {"amd": visible_amd_devices, "intel": visible_intel_devices}.get(first.vendor)
    found = seen(devices, environment) if seen is not None else None
    if found is not None and found.devices is None:
        kind = "cuda" if first.vendor == "amd" else "xpu"
        raise CallerMistake(
            found.reason,
            expected="numbers there, or the device by name",
            remedy=f"--device {kind}:{first.index}   # as the vendor's tools count",
        )


def _or_all(found: Visibility, devices: Sequence[Device], vendor: Vendor) -> Sequence[Device]:
    """Those that are visible; all of a vendor's where nobody can tell: whoever names one means that one."""
    return [one for one in devices if one.vendor == vendor] if found.devices is None else found.devices


def _starts(uuid: str | None, wanted: str) -> bool:
    return uuid is not None and uuid.lower().startswith(wanted.lower())


def _cuda_target(device: Device) -> Target:
    """The child sees this one alone, by UUID, so that no numbering can pick another card."""
    alone = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": device.uuid or str(device.index)}
    return Target(device, "cuda:0", alone)


def _rocm_target(device: Device) -> Target:
    """The tools number AMD's cards as ROCm does."""
    alone = {ROCR_VARIABLE: str(device.index), HIP_VARIABLE: "0", CUDA_VARIABLE: "0"}
    return Target(device, "cuda:0", alone)


def _named(devices: Sequence[Device], environment: Mapping[str, str]) -> dict[str, Target]:
    """Every target by torch's name for it, GPUs first."""
    found: dict[str, Target] = {}
    visible = visible_cuda_devices(devices, environment).devices
    if visible is None:  # an order that only CUDA knows: number them by PCI bus, and say so to CUDA
        visible = cuda_devices(devices)
    for order, device in enumerate(visible):
        found[f"cuda:{order}"] = _cuda_target(device)
    for order, device in enumerate(_or_all(visible_amd_devices(devices, environment), devices, "amd")):
        found.setdefault(f"cuda:{order}", _rocm_target(device))
    for order, device in enumerate(_or_all(visible_intel_devices(devices, environment), devices, "intel")):
        found[f"xpu:{order}"] = Target(device, "xpu:0", {"ZE_AFFINITY_MASK": str(device.index)})
    for device in devices:
        if device.vendor == "apple":
            found["mps"] = Target(device, "mps", {})
        elif device.vendor == "cpu":
            found["cpu"] = Target(device, "cpu", {"CUDA_VISIBLE_DEVICES": ""})
    return found
