"""Fills in what only torch knows: memory that vendors' tools cannot tell, and GPUs that they do not list.

A container may have torch's ROCm or XPU build and none of the vendor's tools; a GPU with unified memory has
no figure in NVML. What comes from torch is labelled so.
"""

import dataclasses
import time
from collections.abc import Sequence

from flatout.records.device import Device, DeviceSample, Vendor
from flatout.records.machine import ComputeProof, Framework

_ONLY_TORCH = "known from torch alone: the vendor's own tool is not installed"


def complete_with_torch(
    devices: Sequence[Device], samples: Sequence[DeviceSample], frameworks: Sequence[Framework]
) -> tuple[tuple[Device, ...], tuple[DeviceSample, ...]]:
    """The devices with torch's figures where there were none, and torch's own where nobody listed any."""
    torch = next((found for found in frameworks if found.name == "torch"), None)
    if torch is None:
        return tuple(devices), tuple(samples)
    filled = [with_torch_memory(device, torch) for device in devices]
    extra = [
        _from_proof(proof, vendor, order)
        for order, proof in enumerate(torch.proofs)
        if (vendor := _vendor(proof, torch)) is not None
        and not any(device.vendor == vendor for device in devices)
    ]
    unseen = [
        DeviceSample(
            index=device.index,
            uuid=device.uuid,
            taken_at_unix_s=time.time(),
            unknown=dict.fromkeys(_sample_fields(), _ONLY_TORCH),
        )
        for device in extra
    ]
    # The CPU stays last, as everywhere.
    gpus = sum(device.vendor != "cpu" for device in filled)
    return (
        (*filled[:gpus], *extra, *filled[gpus:]),
        (*samples[:gpus], *unseen, *samples[gpus:]),
    )


def with_torch_memory(device: Device, torch: Framework) -> Device:
    """Where the vendor's tool has no figure (unified memory, old kernels), torch's is taken and labelled."""
    if device.memory_total_bytes is not None or device.vendor == "cpu":
        return device
    own = [proof for proof in torch.proofs if _vendor(proof, torch) == device.vendor]
    same = [proof for proof in own if proof.uuid and device.uuid and device.uuid.endswith(proof.uuid)]
    proof = next(iter(same), own[0] if len(own) == 1 else None)
    if proof is None or proof.memory_total_bytes is None:
        return device
    unknown = {name: why for name, why in device.unknown.items() if name != "memory_total_bytes"}
    source = "torch, shared with the CPU" if device.unified_memory else "torch"
    return dataclasses.replace(
        device, memory_total_bytes=proof.memory_total_bytes, memory_source=source, unknown=unknown
    )


def _from_proof(proof: ComputeProof, vendor: Vendor, order: int) -> Device:
    told = {
        "uuid": proof.uuid,
        "memory_total_bytes": proof.memory_total_bytes,
        "compute_capability": proof.compute_capability,
    }
    missing = [field.name for field in dataclasses.fields(Device) if field.default is None]
    return Device(
        index=order,
        vendor=vendor,
        name=proof.name or f"{vendor} GPU",
        memory_source="torch",
        unified_memory=vendor == "apple",
        unknown={name: _ONLY_TORCH for name in missing if told.get(name) is None},
        **told,  # type: ignore[arg-type]
    )


def _sample_fields() -> list[str]:
    return [field.name for field in dataclasses.fields(DeviceSample) if field.default is None]


def _vendor(proof: ComputeProof, torch: Framework) -> Vendor | None:
    """Whose device torch means: ROCm builds call AMD's GPUs "cuda" too."""
    kind = proof.device.split(":", maxsplit=1)[0]
    if kind == "cuda":
        return "amd" if (torch.build or "").startswith("ROCm") else "nvidia"
    vendors: dict[str, Vendor] = {"xpu": "intel", "mps": "apple"}
    return vendors.get(kind)
