"""Which physical NVIDIA GPUs a job will see: CUDA_VISIBLE_DEVICES, read as CUDA reads it."""

import dataclasses
import re
from collections.abc import Mapping, Sequence

from flatout.records.device import Device

CUDA_VARIABLE = "CUDA_VISIBLE_DEVICES"
ORDER_VARIABLE = "CUDA_DEVICE_ORDER"
_LEADING_NUMBER = re.compile(r"[+-]?\d+")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Visibility:
    """The GPUs a CUDA job sees, in its order. `devices` is None where the order cannot be told from here."""

    devices: tuple[Device, ...] | None
    reason: str
    ignored: tuple[str, ...] = ()


def cuda_devices(devices: Sequence[Device]) -> tuple[Device, ...]:
    """What CUDA can number: the whole GPUs; or, where some are partitioned (MIG), the instances alone."""
    nvidia = [device for device in devices if device.vendor == "nvidia"]
    instances = [device for device in nvidia if device.parent_uuid]
    return tuple(instances or [device for device in nvidia if not device.mig_enabled])


def visible_cuda_devices(devices: Sequence[Device], environment: Mapping[str, str]) -> Visibility:
    """Map CUDA_VISIBLE_DEVICES to the physical GPUs (or the one MIG instance) that a process will see."""
    cuda = cuda_devices(devices)
    wanted = environment.get(CUDA_VARIABLE)
    if wanted is not None and wanted.strip() == "":
        return Visibility(devices=(), reason=f"{CUDA_VARIABLE} is empty: no GPU is visible")
    if wanted is not None and wanted.startswith(("GPU-", "MIG-")):
        return _one_instance(_by_uuid(cuda, wanted))
    if cuda and cuda[0].parent_uuid:
        if wanted is None or _LEADING_NUMBER.match(wanted):
            return _one_instance(Visibility(devices=cuda, reason="MIG is on"))
        return Visibility(devices=(), reason=f"{CUDA_VARIABLE}={wanted} names no instance")
    if _order_is_unknown(cuda, environment):
        return Visibility(devices=None, reason=_ORDER_REASON)
    if wanted is None:
        return Visibility(devices=cuda, reason=f"{CUDA_VARIABLE} is not set: all are visible")
    return _by_number(cuda, wanted)


def _one_instance(found: Visibility) -> Visibility:
    """A CUDA process uses one MIG instance, the first, however many it is shown."""
    if not found.devices or not found.devices[0].parent_uuid or len(found.devices) == 1:
        return found
    names = tuple(device.uuid or device.name for device in found.devices[1:])
    reason = f"{found.reason}: a process sees one instance, the first"
    return Visibility(
        devices=found.devices[:1], reason=reason, ignored=names if CUDA_VARIABLE in reason else ()
    )


_ORDER_REASON = (
    f"the GPUs differ and {ORDER_VARIABLE} is not PCI_BUS_ID: "
    "CUDA puts the fastest first, in an order that only CUDA knows"
)


def _order_is_unknown(cuda: Sequence[Device], environment: Mapping[str, str]) -> bool:
    return environment.get(ORDER_VARIABLE) != "PCI_BUS_ID" and len({device.name for device in cuda}) > 1


def _by_number(cuda: Sequence[Device], wanted: str) -> Visibility:
    """Numbers count up to the first that does not exist; a repeated one hides everything."""
    chosen: list[int] = []
    words = wanted.split(",")
    for position, word in enumerate(words):
        found = _LEADING_NUMBER.match(word.strip())
        number = int(found[0]) if found else -1
        if number in chosen:
            return Visibility(
                devices=(), reason=f"{CUDA_VARIABLE}={wanted} repeats {number}: no GPU is visible"
            )
        if not 0 <= number < len(cuda):
            return Visibility(
                devices=tuple(cuda[index] for index in chosen),
                reason=f"{CUDA_VARIABLE}={wanted}: {word.strip()!r} is no GPU here, and ends the list",
                ignored=tuple(words[position:]),
            )
        chosen.append(number)
    return Visibility(devices=tuple(cuda[index] for index in chosen), reason=f"{CUDA_VARIABLE}={wanted}")


def _by_uuid(cuda: Sequence[Device], wanted: str) -> Visibility:
    """UUIDs may be shortened as long as they stay unique; the first that is not found ends the list."""
    chosen: list[Device] = []
    words = wanted.split(",")
    for position, word in enumerate(words):
        matches = [device for device in cuda if _names(device, word.strip())]
        if len(matches) != 1:
            what = "is no GPU here" if not matches else "fits several GPUs"
            return Visibility(
                devices=tuple(chosen),
                reason=f"{CUDA_VARIABLE}={wanted}: {word.strip()!r} {what}, and ends the list",
                ignored=tuple(words[position:]),
            )
        if matches[0] in chosen:
            return Visibility(devices=(), reason=f"{CUDA_VARIABLE}={wanted} repeats a GPU: no GPU is visible")
        chosen.append(matches[0])
    return Visibility(devices=tuple(chosen), reason=f"{CUDA_VARIABLE}={wanted}")


def _names(device: Device, word: str) -> bool:
    if not device.uuid or len(word) <= len("GPU-"):
        return False
    # The old spelling of a MIG instance: MIG-GPU-<uuid>/<gpu instance>/<compute instance>.
    if word.startswith("MIG-GPU-") and not device.uuid.startswith("MIG-GPU-"):
        return False
    return device.uuid.lower().startswith(word.lower())
