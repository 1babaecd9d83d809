"""Which ranks a link is measured between: the GPUs of one kind that a job would see, or processes."""

import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Literal

from flatout.hardware.host import available_memory_bytes
from flatout.hardware.visible import cuda_devices, visible_cuda_devices
from flatout.hardware.visible_others import visible_amd_devices
from flatout.records.device import Device
from flatout.records.errors import CallerMistake

_ASK = "--ranks 2 measures between processes on the CPU"
# What a process with torch takes, generously.
_PROCESS_BYTES = 512 << 20
_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


@dataclasses.dataclass(frozen=True)
class Peers:
    """The ranks: what each is, torch's name for its device, and the variables that all of them get."""

    backend: Literal["nccl", "gloo"]
    members: tuple[str, ...]
    torch_devices: tuple[str, ...]
    environment: dict[str, str]
    gpus: tuple[Device, ...] = ()


def choose_peers(
    device: Device,
    devices: Sequence[Device],
    wanted: int | None,
    environment: Mapping[str, str] | None = None,
) -> Peers | str:
    """The ranks to measure between, for a device and its like; or the reason why there are none."""
    environment = os.environ if environment is None else environment
    if device.vendor == "cpu":
        return _processes(wanted, environment) if wanted is not None else f"one process: {_ASK}"
    gpus = _like(device, devices, environment)
    if wanted is not None and (isinstance(gpus, str) or wanted > len(gpus)):
        there = gpus if isinstance(gpus, str) else f"{len(gpus)} of {device.name!r} can be seen here"
        raise CallerMistake(
            f"--ranks {wanted} was given, and there are not so many GPUs: {there}",
            expected="as many GPUs of one kind as ranks",
            remedy="flatout limits --device cpu --ranks 2   # between processes, on the CPU",
        )
    if isinstance(gpus, str):
        return gpus
    return _gpus(gpus[:wanted])


def _like(device: Device, devices: Sequence[Device], environment: Mapping[str, str]) -> list[Device] | str:
    """The device and those of its name that a job would see beside it, in a job's order."""
    if device.vendor not in ("nvidia", "amd"):
        return "links are measured between GPUs of NVIDIA and of AMD"
    if device.parent_uuid or device.mig_enabled:
        return "parts of a GPU (MIG) have no link to each other"
    if device.vendor == "nvidia":
        seen = visible_cuda_devices(devices, environment).devices
        seen = cuda_devices(devices) if seen is None else seen
    else:
        visible = visible_amd_devices(devices, environment)
        if visible.devices is None:
            return visible.reason
        seen = visible.devices
    same = [other for other in seen if other.name == device.name]
    if len(same) > 1 and device in same:
        return same
    return "one GPU of this kind can be seen here: it has no other to send to"


def _gpus(gpus: Sequence[Device]) -> Peers:
    """Each rank sees all of them and takes its own, as torchrun's do."""
    everywhere = ",".join(str(place) for place in range(len(gpus)))
    numbers = ",".join(str(gpu.index) for gpu in gpus)
    if gpus[0].vendor == "amd":
        variables = {
            "ROCR_VISIBLE_DEVICES": numbers,
            "HIP_VISIBLE_DEVICES": everywhere,
            "CUDA_VISIBLE_DEVICES": everywhere,
        }
    else:
        by_uuid = ",".join(gpu.uuid or "" for gpu in gpus) if all(gpu.uuid for gpu in gpus) else numbers
        variables = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": by_uuid}
    return Peers(
        backend="nccl",
        members=tuple(f"GPU {gpu.index}" + (f" ({gpu.uuid})" if gpu.uuid else "") for gpu in gpus),
        torch_devices=tuple(f"cuda:{place}" for place in range(len(gpus))),
        environment=variables,
        gpus=tuple(gpus),
    )


def _processes(count: int, environment: Mapping[str, str]) -> Peers:
    most = available_memory_bytes() // _PROCESS_BYTES
    if count > most:
        raise CallerMistake(
            f"--ranks {count} was given, and memory is free for {most} processes that import torch",
            expected="as many processes as there is room for; as many as cores tell most",
            remedy="flatout limits --device cpu --ranks 2",
        )
    # A machine whose own name does not resolve has a loopback all the same; who named an interface means it.
    interface = environment.get("GLOO_SOCKET_IFNAME", _LOOPBACK)
    return Peers(
        backend="gloo",
        members=tuple(f"process {rank}" for rank in range(count)),
        torch_devices=("cpu",) * count,
        environment={"CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": interface},
    )
