"""Which device is measured: what was typed, or the first GPU that a job would see."""

import pytest

from flatout.limits.target import choose_target
from flatout.records.device import Device
from flatout.records.errors import UnknownName

CPU = Device(index=0, vendor="cpu", name="A CPU", uuid="CPU-1")
GPUS = [Device(index=i, vendor="nvidia", name="NVIDIA H200", uuid=f"GPU-{i}abc") for i in range(3)]


def test_the_first_visible_gpu_is_the_default_and_the_cpu_where_there_is_none() -> None:
    assert choose_target([*GPUS, CPU], None, {}).device == GPUS[0]
    assert choose_target([*GPUS, CPU], None, {"CUDA_VISIBLE_DEVICES": "2,1"}).device == GPUS[2]
    assert choose_target([CPU], None, {}).torch_device == "cpu"


def test_a_gpu_is_handed_to_the_child_by_uuid_so_that_no_numbering_can_pick_another() -> None:
    target = choose_target([*GPUS, CPU], "cuda:1", {"CUDA_VISIBLE_DEVICES": "2,1"})
    assert target.device == GPUS[1]
    assert target.torch_device == "cuda:0"
    assert target.environment["CUDA_VISIBLE_DEVICES"] == "GPU-1abc"


def test_different_gpus_are_numbered_by_bus_and_the_child_is_told_so() -> None:
    mixed = [GPUS[0], Device(index=1, vendor="nvidia", name="NVIDIA T4", uuid="GPU-t4")]
    target = choose_target([*mixed, CPU], "cuda:1", {})
    assert target.device.name == "NVIDIA T4"
    assert target.environment == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "GPU-t4"}


@pytest.mark.parametrize("wanted", ["cuda", "cuda:0", "GPU-0abc", "gpu-0ab"])
def test_several_names_lead_to_the_same_gpu(wanted: str) -> None:
    assert choose_target([*GPUS, CPU], wanted, {}).device == GPUS[0]


@pytest.mark.parametrize("wanted", ["cuda:7", "tpu", "GPU-", "GPU-9", "", "cuda:-1", "cpu:0"])
def test_an_unknown_device_lists_the_known_ones(wanted: str) -> None:
    with pytest.raises(UnknownName, match="cuda:0, cuda:1, cuda:2, cpu"):
        choose_target([*GPUS, CPU], wanted, {})


def test_other_vendors_have_torchs_names() -> None:
    others = [
        Device(index=0, vendor="amd", name="AMD Instinct MI300X"),
        Device(index=0, vendor="intel", name="Intel Arc B580"),
        Device(index=0, vendor="apple", name="Apple M3 Max"),
        CPU,
    ]
    names = {
        name: choose_target(others, name, {}).device.vendor for name in ("cuda:0", "xpu:0", "mps", "cpu")
    }
    assert names == {"cuda:0": "amd", "xpu:0": "intel", "mps": "apple", "cpu": "cpu"}


def test_cards_of_other_vendors_are_handed_over_alone_too() -> None:
    amd = [Device(index=i, vendor="amd", name="AMD Instinct MI300X", uuid=f"a{i}") for i in range(2)]
    target = choose_target([*amd, CPU], "cuda:1", {"HIP_VISIBLE_DEVICES": "1"})
    assert target.device.uuid == "a1"
    assert target.torch_device == "cuda:0"
    assert target.environment["ROCR_VISIBLE_DEVICES"] == "1"
    assert target.environment["HIP_VISIBLE_DEVICES"] == "0"
    intel = [Device(index=i, vendor="intel", name="Intel Arc B580") for i in range(2)]
    assert choose_target([*intel, CPU], "xpu:1", {}).environment == {"ZE_AFFINITY_MASK": "1"}


def test_a_partitioned_card_is_never_measured_as_a_whole() -> None:
    parent = Device(index=0, vendor="nvidia", name="NVIDIA H200", uuid="GPU-p", mig_enabled=True)
    parts = [
        Device(
            index=0,
            vendor="nvidia",
            name=f"NVIDIA H200 MIG {size}",
            uuid=f"MIG-{size}",
            mig_enabled=True,
            parent_uuid="GPU-p",
            mig_slot=str(slot),
        )
        for slot, size in enumerate(("1g.18gb", "3g.71gb"))
    ]
    assert choose_target([parent, *parts, CPU], None, {}).device == parts[0]
    assert choose_target([parent, *parts, CPU], "MIG-3g", {}).device == parts[1]


def test_a_laptops_graphics_are_no_default_unless_torch_is_built_for_them() -> None:
    laptop = [Device(index=0, vendor="intel", name="Intel Iris Xe"), CPU]
    assert choose_target(laptop, None, {}, torch_version="2.13.0+cpu").device == CPU
    assert choose_target(laptop, None, {}, torch_version="2.13.0+xpu").torch_device == "xpu:0"
