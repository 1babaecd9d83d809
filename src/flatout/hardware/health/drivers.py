"""Drivers: is there a GPU, does its driver answer, is the driver new enough."""

import re
from collections.abc import Iterator, Sequence

from flatout.hardware.health.check import Outcome
from flatout.hardware.nvidia.source import LOADED_BUT_EMPTY
from flatout.records.device import Vendor
from flatout.records.machine import Machine, VendorStatus
from flatout.records.words import memory_size

_DRIVER_NAMES = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel", "apple": "Apple", "cpu": "CPU"}


def device_present(machine: Machine) -> Iterator[Outcome]:
    """Looks for a GPU of any vendor.

    Without one, jobs run on the CPU. A card that is on the PCI bus while no driver shows it is reported
    apart: that machine has a GPU that nobody can use.
    """
    if machine.gpus:
        for device in machine.gpus:
            memory = memory_size(device.memory_total_bytes) if device.memory_total_bytes else "memory unknown"
            yield Outcome("ok", f"{device.name}, {memory}", device=device)
        return
    if any(status.absent_reason == LOADED_BUT_EMPTY for status in machine.vendors):
        yield Outcome(
            "warn",
            "the NVIDIA driver works, and shows no GPU to this process",
            "ask for one (Slurm: --gpus=1; Kubernetes: nvidia.com/gpu; Docker: --gpus all)",
        )
        return
    on_bus = machine.host.pci_gpu_vendors or ()
    # Intel's integrated graphics are on nearly every desktop; a missing driver for them is no fault.
    missing = [vendor for vendor in on_bus if vendor in ("nvidia", "amd")]
    if missing:
        names = " and ".join(_DRIVER_NAMES[vendor] for vendor in missing)
        # Many processors have AMD graphics that nobody means to compute on, and many containers need no GPU.
        yield Outcome(
            "fail" if "nvidia" in missing and not machine.host.container else "warn",
            f"the PCI bus has a GPU of {names}, but no driver shows it",
            _driver_fix(machine, missing),
        )
        return
    yield Outcome(
        "warn",
        "no GPU: jobs will run on the CPU",
        "in a container: start it with --gpus all; in the cloud: choose a machine with a GPU",
    )


def driver_answers(machine: Machine) -> Iterator[Outcome]:
    """Asks every vendor's driver and reports the ones that do not answer properly.

    A driver whose kernel module and library have different versions (after an update without a reboot),
    one that lost its permission (after a reload of the container's control group), and a GPU that fell off
    the bus all look the same from a script: no GPU. Here each is named, with the way back.
    """
    broken = [
        status for status in machine.vendors if status.problem and not _needs_no_driver(machine, status)
    ]
    for status in broken:
        yield Outcome("fail", status.problem, status.fix)
    for status in machine.vendors:
        if status not in broken and _has_devices(machine, status):
            versions = {device.driver_version for device in machine.gpus if device.vendor == status.vendor}
            named = ", ".join(sorted(version for version in versions if version)) or "version unknown"
            yield Outcome("ok", f"{_DRIVER_NAMES[status.vendor]} driver {named}")


def device_answers(machine: Machine) -> Iterator[Outcome]:
    """Reads each GPU once: one that is lost, blocked or stale is named while the others are still shown.

    A lost GPU (Xid 79) needs a reset or a reboot; jobs on it hang or die with "device unavailable".
    """
    for device in machine.gpus:
        sample = machine.sample_of(device)
        if sample is not None and sample.state != "up":
            fix = (
                f"sudo nvidia-smi --gpu-reset -i {device.index}   # if it fails, reboot"
                if device.vendor == "nvidia"
                else "reboot"
            )
            yield Outcome("fail", f"does not answer: {sample.state_reason}", fix, device)


def cuda_driver_version(machine: Machine) -> Iterator[Outcome]:
    """Compares the CUDA version that the driver offers with the one that torch was built for.

    A driver with a lower major version cannot run that torch at all: "the NVIDIA driver on your system is
    too old". A lower minor version works, through CUDA's minor version compatibility.
    """
    torch = machine.framework("torch")
    nvidia = [device for device in machine.gpus if device.vendor == "nvidia" and device.runtime_version]
    if torch is None or not torch.build or not torch.build.startswith("CUDA") or not nvidia:
        return
    offered, needed = _version(nvidia[0].runtime_version or ""), _version(torch.build)
    if offered is None or needed is None:
        yield Outcome("unknown", f"cannot compare {nvidia[0].runtime_version!r} with {torch.build!r}")
    elif offered[0] < needed[0]:
        yield Outcome(
            "fail",
            f"the driver offers {nvidia[0].runtime_version}, and torch was built for {torch.build}",
            f"update the NVIDIA driver to one for CUDA {needed[0]}, or install torch for CUDA {offered[0]}",
        )
    else:
        yield Outcome("ok", f"driver {nvidia[0].runtime_version}, torch built for {torch.build}")


def _needs_no_driver(machine: Machine, status: VendorStatus) -> bool:
    """A login node with NVIDIA's library and no card needs no driver."""
    on_bus = machine.host.pci_gpu_vendors
    return status.problem_code == "nvidia.driver_not_loaded" and on_bus is not None and "nvidia" not in on_bus


def _has_devices(machine: Machine, status: VendorStatus) -> bool:
    return any(device.vendor == status.vendor for device in machine.gpus)


def _driver_fix(machine: Machine, missing: Sequence[Vendor]) -> str:
    if "nvidia" not in missing:
        if machine.host.container:
            return "start the container with --device=/dev/kfd --device=/dev/dri"
        return "install AMD's driver and ROCm (with amdsmi or rocm-smi), then reboot"
    if machine.host.container:
        return "start the container with --gpus all   # and install the NVIDIA container toolkit on the host"
    return "sudo apt install nvidia-driver   # Debian; on Ubuntu: sudo ubuntu-drivers install; then reboot"


def _version(text: str) -> tuple[int, int] | None:
    found = re.search(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None
