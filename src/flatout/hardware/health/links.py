"""Links: PCIe below what the card can do, and NVLinks that are down."""

from collections.abc import Iterator

from flatout.hardware.health.check import Outcome
from flatout.records.device import Device, DeviceSample
from flatout.records.machine import Machine

_BUSY = 0.2
_LOOK = {"nvidia": "nvidia-smi -q -d PCIE", "amd": "rocm-smi --showbus"}


def pcie_link(machine: Machine) -> Iterator[Outcome]:
    """Compares the PCIe link's width and generation with the most that card and slot can do.

    A card on 8 of 16 lanes, or at generation 3 instead of 5, copies at half speed or less; nothing else
    tells. The generation falls when a GPU is idle, to save power, and rises under load: a low one is
    judged only while the GPU is busy. The width does not change with load.
    """
    for device in machine.gpus:
        sample = machine.sample_of(device)
        if sample is None or sample.state == "down" or device.parent_uuid:
            continue
        if sample.pcie_width is None or device.pcie_width_max is None:
            if device.vendor == "nvidia":
                yield Outcome(
                    "unknown", sample.unknown.get("pcie_width", "the driver does not say"), device=device
                )
            continue
        yield _judge_pcie(device, sample, sample.pcie_width, device.pcie_width_max)


def _judge_pcie(device: Device, sample: DeviceSample, width: int, width_max: int) -> Outcome:
    generation, generation_max = sample.pcie_generation, device.pcie_generation_max
    now = f"PCIe generation {generation or 'unknown'}, {width} lanes"
    if width < width_max:
        return Outcome("warn", f"{now}: the card can do {width_max} lanes", _reseat(device), device)
    if generation is None or generation_max is None:
        return Outcome("unknown", f"{now}: the generation cannot be compared", device=device)
    if generation >= generation_max:
        return Outcome("ok", now, device=device)
    if sample.kernel_running_share is None:
        evidence = f"{now}: the card can do generation {generation_max}; whether it is idle is not known"
        return Outcome("unknown", evidence, device=device)
    if sample.kernel_running_share < _BUSY:
        return Outcome("ok", f"{now}; idle (generation {generation_max} under load)", device=device)
    return Outcome(
        "warn", f"{now} under load: the card can do generation {generation_max}", _reseat(device), device
    )


def _reseat(device: Device) -> str:
    look = _LOOK.get(device.vendor, "lspci -vv | grep -i lnksta")
    return f"{look}   # then reseat the card, another slot, or the BIOS setting for the slot"


def nvlink(machine: Machine) -> Iterator[Outcome]:
    """Counts the NVLinks that are up.

    With some links down, GPUs talk to each other more slowly, and all-reduce waits for the slowest.
    `flatout limits` measures what they still send each other, and names a pair that is slow.
    """
    for device in machine.gpus:
        sample = machine.sample_of(device)
        if sample is None or not sample.gpu_links:
            continue
        up = sum(link.active for link in sample.gpu_links)
        total = len(sample.gpu_links)
        if 0 < up < total:
            fix = f"nvidia-smi nvlink --status -i {device.index}   # Xid 74 in dmesg? reset or reboot"
            yield Outcome("warn", f"{up} of {total} links are up", fix, device)
        elif up:
            yield Outcome("ok", f"all {total} links are up", device=device)
        else:
            evidence = f"none of {total} links is up (there may be no bridge or switch)"
            yield Outcome("ok", evidence, device=device)
