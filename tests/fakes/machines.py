"""Machines as records: a healthy H200, a machine without a GPU, and ways to change one thing in them."""

import dataclasses
from typing import Any

from flatout.records.device import Device, DeviceSample, GpuLink
from flatout.records.machine import ComputeProof, Framework, Host, Machine, Place, VendorStatus

GIB = 1 << 30
H200_UUID = "GPU-5d3f0e6a-1c2b-4a7e-9f10-2b8c7d6e5f40"
NOT_SUPPORTED = "not supported by this GPU or driver"


def healthy_h200() -> Machine:
    """One H200 in a server, with nothing wrong."""
    cpu, cpu_sample = _cpu()
    return Machine(
        devices=(h200(), cpu),
        samples=(h200_sample(), cpu_sample),
        vendors=(
            VendorStatus(vendor="nvidia"),
            VendorStatus(vendor="amd", absent_reason="no AMD GPU"),
            VendorStatus(vendor="cpu"),
        ),
        host=server(pci_gpu_vendors=("nvidia",)),
        frameworks=(
            Framework(
                name="torch",
                installed=True,
                version="2.11.0+cu130",
                build="CUDA 13.0",
                architectures=("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"),
                proofs=(
                    ComputeProof(
                        device="cuda:0",
                        name="NVIDIA H200",
                        uuid=H200_UUID.removeprefix("GPU-"),
                        compute_capability="9.0",
                        memory_total_bytes=150_109_880_320,
                        memory_free_bytes=149_500_000_000,
                        computed=True,
                    ),
                ),
                switches={"threads": "16"},
                import_s=2.1,
            ),
            Framework(name="tensorflow", installed=False),
            Framework(name="jax", installed=False),
        ),
        environment={},
        kernel_xids=(),
    )


def without_gpu() -> Machine:
    """A server with a CPU only, and a CPU build of torch."""
    cpu, sample = _cpu()
    proof = ComputeProof(device="cpu", name="CPU", computed=True)
    torch = Framework(name="torch", installed=True, version="2.11.0+cpu", build="CPU", proofs=(proof,))
    return Machine(
        devices=(cpu,),
        samples=(sample,),
        vendors=(
            VendorStatus(vendor="nvidia", absent_reason="libnvidia-ml is not on this machine"),
            VendorStatus(vendor="cpu"),
        ),
        host=server(pci_gpu_vendors=()),
        frameworks=(torch,),
        environment={},
        unknown={"kernel_xids": "dmesg exited with 1: Operation not permitted"},
    )


def h200(**changes: Any) -> Device:
    """The fixed properties of an H200."""
    facts: dict[str, Any] = {
        "index": 0,
        "vendor": "nvidia",
        "name": "NVIDIA H200",
        "uuid": H200_UUID,
        "memory_total_bytes": 150_754_820_096,
        "memory_source": "NVML",
        "architecture": "hopper",
        "compute_capability": "9.0",
        "driver_version": "580.159.04",
        "runtime_version": "CUDA 13.0",
        "core_count": 16896,
        "pci_bus_id": "00000000:3b:00.0",
        "pcie_generation_max": 5,
        "pcie_width_max": 16,
        "clock_compute_max_hz": 1_980_000_000,
        "clock_memory_max_hz": 3_201_000_000,
        "power_limit_default_mw": 700_000,
        "power_limit_min_mw": 200_000,
        "power_limit_max_mw": 700_000,
        "temperature_slowdown_c": 89,
        "temperature_shutdown_c": 95,
        "mig_enabled": False,
    }
    return Device(**{**facts, **changes})


def h200_sample(**changes: Any) -> DeviceSample:
    """An idle H200 at one instant."""
    facts: dict[str, Any] = {
        "index": 0,
        "uuid": H200_UUID,
        "taken_at_unix_s": 1_760_000_000.0,
        "memory_used_bytes": 644_939_776,
        "memory_free_bytes": 150_109_880_320,
        "kernel_running_share": 0.0,
        "memory_bus_active_share": 0.0,
        "activity_source": "NVML",
        "clock_compute_hz": 1_980_000_000,
        "clock_memory_hz": 3_201_000_000,
        "performance_state": 0,
        "throttle_reasons": (),
        "power_draw_mw": 125_048,
        "power_limit_mw": 700_000,
        "energy_total_mj": 1_234_567_890,
        "temperature_c": 43,
        "temperature_memory_c": 47,
        "pcie_generation": 5,
        "pcie_width": 16,
        "gpu_links": tuple(GpuLink(link=number, active=True) for number in range(18)),
        "ecc_enabled": True,
        "ecc_corrected_since_boot": 0,
        "ecc_uncorrected_since_boot": 0,
        "ecc_uncorrected_lifetime": 0,
        "memory_rows_remapped": 0,
        "memory_repair_pending": False,
        "memory_repair_failed": False,
        "xid_count": 0,
        "persistence_mode": True,
        "compute_mode": "default",
        "processes": (),
        "unknown": {"fan_speed_share": NOT_SUPPORTED, "xid_last": "no Xid since watching began"},
    }
    return DeviceSample(**{**facts, **changes})


def server(**changes: Any) -> Host:
    """A host with room everywhere and no limits."""
    facts: dict[str, Any] = {
        "system": "Linux 6.8.0",
        "python_version": "3.12.4",
        "cpu_count": 16,
        "cpu_affinity_count": 16,
        "cpu_governor": "performance",
        "memory_total_bytes": 128 * GIB,
        "memory_available_bytes": 100 * GIB,
        "shm_total_bytes": 64 * GIB,
        "shm_free_bytes": 64 * GIB,
        "container": False,
        "places": (
            _place("working folder", "/home/ada/job"),
            _place("temporary files", "/tmp"),
            _place("compile cache", "/tmp/torchinductor_ada"),
        ),
        "unknown": {
            "cpu_quota": "no CPU limit is set",
            "memory_limit_bytes": "no memory limit is set",
            "memory_limit_used_bytes": "no memory limit is set",
        },
    }
    return Host(**{**facts, **changes})


def with_device(machine: Machine, *, at: int = 0, **changes: Any) -> Machine:
    """The same machine, with the device at position `at` changed."""
    return dataclasses.replace(machine, devices=_changed_at(machine.devices, at, changes))


def with_sample(machine: Machine, *, at: int = 0, **changes: Any) -> Machine:
    """The same machine, with the sample at position `at` changed."""
    return dataclasses.replace(machine, samples=_changed_at(machine.samples, at, changes))


def with_gpus(machine: Machine, *pairs: tuple[Device, DeviceSample]) -> Machine:
    """The same machine with other GPUs; its CPU stays."""
    cpus = [pair for pair in zip(machine.devices, machine.samples, strict=True) if pair[0].vendor == "cpu"]
    devices, samples = zip(*pairs, *cpus, strict=True)
    return dataclasses.replace(machine, devices=devices, samples=samples)


def with_host(machine: Machine, **changes: Any) -> Machine:
    """The same machine, with something of its host changed."""
    return dataclasses.replace(machine, host=changed(machine.host, **changes))


def with_environment(machine: Machine, **variables: str) -> Machine:
    """The same machine with exactly these variables."""
    return dataclasses.replace(machine, environment=variables)


def with_torch(machine: Machine, **changes: Any) -> Machine:
    """The same machine, with something of its torch changed."""
    torch = machine.framework("torch")
    assert torch is not None
    return with_framework(machine, changed(torch, **changes))


def with_framework(machine: Machine, framework: Framework) -> Machine:
    """The same machine, with this framework instead of the one of its name."""
    others = [found for found in machine.frameworks if found.name != framework.name]
    return dataclasses.replace(machine, frameworks=(framework, *others))


def changed(record: Any, **changes: Any) -> Any:
    """A record with other values. Reasons for the changed fields go; `unknown` may give new ones."""
    reasons = {name: why for name, why in record.unknown.items() if name not in changes}
    return dataclasses.replace(record, **{**changes, "unknown": {**reasons, **changes.get("unknown", {})}})


def _changed_at(records: tuple[Any, ...], at: int, changes: dict[str, Any]) -> tuple[Any, ...]:
    return (*records[:at], changed(records[at], **changes), *records[at + 1 :])


def _place(purpose: str, path: str) -> Place:
    return Place(
        purpose=purpose,
        path=path,
        free_bytes=500 * GIB,
        total_bytes=900 * GIB,
        writable=True,
        filesystem="ext4",
    )


def _cpu() -> tuple[Device, DeviceSample]:
    device = Device(
        index=0,
        vendor="cpu",
        name="Intel(R) Xeon(R) Platinum 8480C",
        uuid="cpu-3d1219c7",
        memory_total_bytes=128 * GIB,
        memory_source="psutil",
        core_count=16,
    )
    return device, DeviceSample(index=0, uuid="cpu-3d1219c7", taken_at_unix_s=1_760_000_000.0)
