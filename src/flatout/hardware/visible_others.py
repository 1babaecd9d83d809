"""Which GPUs of AMD and of Intel a job will see: their variables, read as ROCm and Level Zero read them."""

from collections.abc import Mapping, Sequence

from flatout.hardware.visible import CUDA_VARIABLE, Visibility
from flatout.records.device import Device

ROCR_VARIABLE = "ROCR_VISIBLE_DEVICES"
HIP_VARIABLE = "HIP_VISIBLE_DEVICES"
ZE_VARIABLE = "ZE_AFFINITY_MASK"


def visible_amd_devices(devices: Sequence[Device], environment: Mapping[str, str]) -> Visibility:
    """What ROCr leaves; of these, and by their new numbers, what HIP leaves, in the order that it names."""
    found = _chosen([device for device in devices if device.vendor == "amd"], environment, ROCR_VARIABLE)
    if not found.devices:
        return found
    # For HIP an empty variable is none, and CUDA's own counts where HIP's does not.
    variable = next((name for name in (HIP_VARIABLE, CUDA_VARIABLE) if environment.get(name)), "")
    return _chosen(found.devices, environment, variable) if variable else found


def visible_intel_devices(devices: Sequence[Device], environment: Mapping[str, str]) -> Visibility:
    """What the mask leaves, in the devices' own order: a mask puts nothing in another one."""
    intel = [device for device in devices if device.vendor == "intel"]
    if not environment.get(ZE_VARIABLE):
        return Visibility(devices=tuple(intel), reason=f"{ZE_VARIABLE} is not set: all are visible")
    found = _chosen(intel, environment, ZE_VARIABLE)
    if found.devices is None:
        return found
    return Visibility(devices=tuple(one for one in intel if one in found.devices), reason=found.reason)


def _chosen(devices: Sequence[Device], environment: Mapping[str, str], variable: str) -> Visibility:
    """Those of these numbers. What is no number (a UUID, a part of a card) cannot be told from here."""
    wanted = environment.get(variable)
    if wanted is None:
        return Visibility(devices=tuple(devices), reason=f"{variable} is not set: all are visible")
    chosen: list[Device] = []
    for word in (word.strip() for word in wanted.split(",")):
        if word and not word.removeprefix("-").isdigit():
            reason = f"{variable}={wanted}: {word!r} is no number, and only the driver knows which GPU it is"
            return Visibility(devices=None, reason=reason)
        if not word.isdigit() or int(word) >= len(devices) or devices[int(word)] in chosen:
            break  # the first that is not there, or that is there twice, ends the list
        chosen.append(devices[int(word)])
    return Visibility(devices=tuple(chosen), reason=f"{variable}={wanted}")
