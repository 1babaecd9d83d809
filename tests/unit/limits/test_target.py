"""Which device is measured: what was typed, or the first GPU that a job would see."""

import pytest

from flatout.hardware.visible_others import visible_amd_devices
from flatout.limits.target import choose_target
from flatout.records.device import Device
from flatout.records.errors import CallerMistake, UnknownName

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
    target = choose_target([*amd, CPU], "cuda:0", {"HIP_VISIBLE_DEVICES": "1"})
    assert target.device.uuid == "a1"
    assert target.torch_device == "cuda:0"
    assert target.environment["ROCR_VISIBLE_DEVICES"] == "1"
    assert target.environment["HIP_VISIBLE_DEVICES"] == "0"
    intel = [Device(index=i, vendor="intel", name="Intel Arc B580") for i in range(2)]
    assert choose_target([*intel, CPU], "xpu:1", {}).environment == {"ZE_AFFINITY_MASK": "1"}


@pytest.mark.parametrize(
    ("environment", "seen"),
    [
        ({}, [0, 1, 2, 3]),
        ({"ROCR_VISIBLE_DEVICES": "2,0"}, [2, 0]),
        ({"ROCR_VISIBLE_DEVICES": "3,2,1", "HIP_VISIBLE_DEVICES": "2,0"}, [1, 3]),
        ({"CUDA_VISIBLE_DEVICES": "3"}, [3]),
        ({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "3"}, [1]),
        ({"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": ""}, [0, 1, 2, 3]),
        ({"HIP_VISIBLE_DEVICES": "1,-1,2"}, [1]),
        ({"ROCR_VISIBLE_DEVICES": "1,7,2"}, [1]),
        ({"ROCR_VISIBLE_DEVICES": "1,1"}, [1]),
        ({"ROCR_VISIBLE_DEVICES": ""}, []),
    ],
)
def test_amds_variables_are_heeded_one_after_the_other(environment: dict[str, str], seen: list[int]) -> None:
    amd = [Device(index=i, vendor="amd", name="AMD Instinct MI300X", uuid=f"a{i}") for i in range(4)]
    found = visible_amd_devices([*amd, CPU], environment).devices
    assert found is not None
    assert [device.index for device in found] == seen
    assert choose_target([*amd, CPU], None, environment).device == (amd[seen[0]] if seen else CPU)


def test_intels_mask_leaves_devices_out_and_keeps_their_order() -> None:
    intel = [Device(index=i, vendor="intel", name="Intel Max 1550") for i in range(3)]
    target = choose_target(intel, None, {"ZE_AFFINITY_MASK": "2,1"}, torch_version="2.13.0+xpu")
    assert (target.device.index, target.environment) == (1, {"ZE_AFFINITY_MASK": "1"})
    with pytest.raises(UnknownName, match="xpu:0"):
        choose_target(intel, "xpu:1", {"ZE_AFFINITY_MASK": "2"})


def test_what_only_a_driver_knows_is_not_guessed() -> None:
    amd = [Device(index=i, vendor="amd", name="AMD Instinct MI300X", uuid=f"a{i}") for i in range(2)]
    by_uuid = {"ROCR_VISIBLE_DEVICES": "GPU-1234567890abcdef"}
    with pytest.raises(CallerMistake, match="only the driver knows") as raised:
        choose_target([*amd, CPU], None, by_uuid)
    assert "--device cuda:0" in raised.value.remedy
    assert choose_target([*amd, CPU], "cuda:1", by_uuid).device == amd[1]
    named = [Device(index=i, vendor="amd", name="AMD Instinct MI300X", uuid=f"{i}aff74a1") for i in range(2)]
    assert choose_target([*named, CPU], "1aff74a1", {"HIP_VISIBLE_DEVICES": "0"}).device == named[1]
    tiles = [Device(index=0, vendor="intel", name="Intel Max 1550"), CPU]
    with pytest.raises(CallerMistake, match=r"'0.1' is no number"):
        choose_target(tiles, None, {"ZE_AFFINITY_MASK": "0.1"}, torch_version="2.13.0+xpu")
    assert choose_target(tiles, None, {"ZE_AFFINITY_MASK": "0.1"}, torch_version="2.13.0+cpu").device == CPU


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
