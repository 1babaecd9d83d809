"""What only torch knows: GPUs without a vendor's tool, and memory without a figure."""

import dataclasses

from flatout.hardware.torch_devices import complete_with_torch
from flatout.records.device import Device, DeviceSample
from flatout.records.machine import ComputeProof, Framework

CPU = Device(index=0, vendor="cpu", name="A CPU")
CPU_SAMPLE = DeviceSample(index=0, uuid=None, taken_at_unix_s=1.0)


def torch(build: str, *proofs: ComputeProof) -> Framework:
    return Framework(name="torch", installed=True, version="2.11.0", build=build, proofs=proofs)


def test_a_gpu_that_only_torch_sees_is_listed_before_the_cpu_and_labelled() -> None:
    proof = ComputeProof(
        device="cuda:0", name="AMD Instinct MI300X", compute_capability="gfx942", memory_total_bytes=192 << 30
    )
    devices, samples = complete_with_torch([CPU], [CPU_SAMPLE], [torch("ROCm 6.4", proof)])
    assert [device.vendor for device in devices] == ["amd", "cpu"]
    assert len(samples) == 2
    assert samples[1] == CPU_SAMPLE
    assert devices[0].name == "AMD Instinct MI300X"
    assert devices[0].memory_source == "torch"
    assert devices[0].driver_version is None
    assert "torch alone" in devices[0].unknown["driver_version"]
    assert "memory_total_bytes" not in devices[0].unknown
    assert "torch alone" in samples[0].unknown["power_draw_mw"]


def test_each_kind_of_device_gets_its_vendor() -> None:
    for build, name, vendor in (
        ("CUDA 13.0", "cuda:0", "nvidia"),
        ("XPU 2025", "xpu:0", "intel"),
        ("MPS", "mps", "apple"),
    ):
        devices, _ = complete_with_torch([CPU], [CPU_SAMPLE], [torch(build, ComputeProof(device=name))])
        assert devices[0].vendor == vendor


def test_a_gpu_that_its_vendor_lists_is_not_listed_twice() -> None:
    gpu = Device(index=0, vendor="nvidia", name="NVIDIA H200", uuid="GPU-abc", memory_total_bytes=1 << 37)
    sample = dataclasses.replace(CPU_SAMPLE, uuid="GPU-abc")
    proof = ComputeProof(device="cuda:0", name="NVIDIA H200", uuid="abc")
    devices, samples = complete_with_torch([gpu, CPU], [sample, CPU_SAMPLE], [torch("CUDA 13.0", proof)])
    assert devices == (gpu, CPU)
    assert samples == (sample, CPU_SAMPLE)


def test_memory_is_taken_from_the_gpu_with_the_same_uuid() -> None:
    gpus = [
        Device(index=i, vendor="nvidia", name="NVIDIA GB10", uuid=f"GPU-{i}", unified_memory=True)
        for i in (0, 1)
    ]
    proofs = [
        ComputeProof(device=f"cuda:{n}", uuid=str(u), memory_total_bytes=(u + 1) << 30)
        for n, u in enumerate((1, 0))
    ]
    devices, _ = complete_with_torch(gpus, [CPU_SAMPLE] * 2, [torch("CUDA 13.0", *proofs)])
    assert [device.memory_total_bytes for device in devices] == [1 << 30, 2 << 30]
    assert {device.memory_source for device in devices} == {"torch, shared with the CPU"}


def test_without_torch_nothing_changes() -> None:
    assert complete_with_torch([CPU], [CPU_SAMPLE], []) == ((CPU,), (CPU_SAMPLE,))


def test_torch_on_the_cpu_adds_no_device() -> None:
    found = complete_with_torch([CPU], [CPU_SAMPLE], [torch("CPU", ComputeProof(device="cpu"))])
    assert found == ((CPU,), (CPU_SAMPLE,))
