"""CUDA_VISIBLE_DEVICES in all its forms leads to the right physical GPU."""

import os
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flatout.hardware.visible import visible_cuda_devices
from flatout.records.device import Device

UUIDS = ("GPU-5d3f0e6a-1c2b", "GPU-77aa0000-1c2b", "GPU-77bb1111-1c2b", "GPU-c0ffee00-1c2b")


def gpu(index: int, **changes: object) -> Device:
    return Device(index=index, vendor="nvidia", name="NVIDIA H200", uuid=UUIDS[index], **changes)  # type: ignore[arg-type]


FOUR = [gpu(index) for index in range(4)]


def seen(value: str | None, devices: list[Device] = FOUR, **environment: str) -> list[int] | None:
    if value is not None:
        environment["CUDA_VISIBLE_DEVICES"] = value
    found = visible_cuda_devices(devices, environment).devices
    return None if found is None else [device.index for device in found]


@pytest.mark.parametrize(
    ("value", "indices"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("  ", []),
        ("0", [0]),
        ("2,0", [2, 0]),
        ("1, 3", [1, 3]),
        ("-1", []),
        ("0,-1,2", [0]),
        ("0,9,2", [0]),
        ("1,1", []),
        ("nonsense", []),
        ("1gpu,2", [1, 2]),
        ("GPU-c0ffee00-1c2b", [3]),
        ("GPU-c0ff", [3]),
        ("GPU-c0ff,GPU-5d3f", [3, 0]),
        ("GPU-77", []),  # fits two
        ("GPU-77aa,GPU-none,GPU-5d3f", [1]),
        ("GPU-77aa,GPU-77aa", []),
    ],
)
def test_the_variable_is_read_as_cuda_reads_it(value: str | None, indices: list[int]) -> None:
    assert seen(value) == indices


def test_an_entry_that_ends_the_list_is_reported_with_what_it_hides() -> None:
    found = visible_cuda_devices(FOUR, {"CUDA_VISIBLE_DEVICES": "0,9,2"})
    assert found.ignored == ("9", "2")
    assert "'9'" in found.reason


def test_different_gpus_without_a_fixed_order_cannot_be_told_apart_by_number() -> None:
    mixed = [gpu(0), Device(index=1, vendor="nvidia", name="NVIDIA T4", uuid="GPU-t4")]
    assert seen("0", mixed) is None
    assert seen(None, mixed) is None
    assert seen("0", mixed, CUDA_DEVICE_ORDER="PCI_BUS_ID") == [0]
    assert seen("GPU-t4xx"[:6], mixed) == [1]  # a UUID needs no order


def test_with_mig_the_instances_are_numbered_and_the_parent_is_not() -> None:
    parent = gpu(0, mig_enabled=True)
    instances = [
        Device(
            index=slot,
            vendor="nvidia",
            name="NVIDIA H200 MIG 1g.18gb",
            uuid=f"MIG-{slot}",
            mig_enabled=True,
            parent_uuid=UUIDS[0],
        )
        for slot in range(2)
    ]
    found = visible_cuda_devices([parent, *instances], {"CUDA_VISIBLE_DEVICES": "MIG-1"})
    assert found.devices == (instances[1],)
    alone = visible_cuda_devices([parent, *instances], {})
    assert alone.devices == (instances[0],)  # however many there are, a process gets one
    both = visible_cuda_devices([parent, *instances], {"CUDA_VISIBLE_DEVICES": "MIG-1,MIG-0"})
    assert both.devices == (instances[1],)
    assert both.ignored == ("MIG-0",)


def test_gpus_of_other_vendors_do_not_count() -> None:
    amd = Device(index=0, vendor="amd", name="AMD Instinct MI300X")
    assert seen("0", [amd, *FOUR]) == [0]
    assert visible_cuda_devices([amd], {}).devices == ()


@given(
    st.lists(st.sampled_from(["0", "1", "2", "3", "-1", " 2", "1x", "x", "", "+3"]), max_size=5).map(",".join)
)
def test_numbers_agree_with_torchs_own_reading(value: str) -> None:
    with mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": value}):
        theirs = torch.cuda._parse_visible_devices()
    ours = seen(value)
    assert ours == theirs or (value.strip() == "" and ours == [])
