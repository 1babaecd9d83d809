"""Who a link is measured between: GPUs of one kind that a job would see, or processes."""

import dataclasses

import pytest

from flatout.limits.peers import Peers, choose_peers
from flatout.records.device import Device
from flatout.records.errors import CallerMistake

GPUS = [Device(index=at, vendor="nvidia", name="NVIDIA H200", uuid=f"GPU-{at}aaa") for at in range(4)]
CPU = Device(index=0, vendor="cpu", name="A CPU", uuid="CPU-1")


def peers(*devices: Device, wanted: int | None = None, **environment: str) -> Peers:
    found = choose_peers(devices[0], [*devices, CPU], wanted, environment)
    assert isinstance(found, Peers), found
    return found


def reason(*devices: Device, **environment: str) -> str:
    found = choose_peers(devices[0], [*devices, CPU], None, environment)
    assert isinstance(found, str)
    return found


def test_every_rank_sees_all_gpus_by_uuid_and_takes_its_own() -> None:
    found = peers(*GPUS)
    assert found.backend == "nccl"
    assert found.torch_devices == ("cuda:0", "cuda:1", "cuda:2", "cuda:3")
    assert found.environment["CUDA_VISIBLE_DEVICES"] == "GPU-0aaa,GPU-1aaa,GPU-2aaa,GPU-3aaa"
    assert found.members[2] == "GPU 2 (GPU-2aaa)"


def test_gpus_without_uuids_go_by_their_place_on_the_bus() -> None:
    bare = [dataclasses.replace(gpu, uuid=None) for gpu in GPUS[:2]]
    assert peers(*bare).environment == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0,1"}


def test_only_gpus_that_a_job_would_see_and_of_the_same_kind_count() -> None:
    assert [gpu.index for gpu in peers(*GPUS, CUDA_VISIBLE_DEVICES="2,0").gpus] == [2, 0]
    other = Device(index=4, vendor="nvidia", name="NVIDIA T4", uuid="GPU-4aaa")
    assert [gpu.index for gpu in peers(*GPUS, other).gpus] == [0, 1, 2, 3]
    assert "no other" in reason(other, *GPUS)
    assert "no other" in reason(*GPUS, CUDA_VISIBLE_DEVICES="0")
    assert "no other" in reason(GPUS[0])


def test_parts_of_a_gpu_and_other_vendors_have_a_reason() -> None:
    part = dataclasses.replace(GPUS[0], uuid="MIG-1", parent_uuid="GPU-0aaa")
    assert "MIG" in reason(part, dataclasses.replace(part, uuid="MIG-2"))
    assert "AMD" in reason(Device(index=0, vendor="apple", name="M4"))


def test_amds_cards_are_chosen_by_their_numbers() -> None:
    cards = [Device(index=at, vendor="amd", name="MI300X", uuid=str(at)) for at in (1, 3)]
    found = peers(*cards)
    assert found.environment["ROCR_VISIBLE_DEVICES"] == "1,3"
    assert found.environment["HIP_VISIBLE_DEVICES"] == "0,1"
    more = [Device(index=at, vendor="amd", name="MI300X", uuid=str(at)) for at in range(4)]
    assert peers(*more, ROCR_VISIBLE_DEVICES="3,0").environment["ROCR_VISIBLE_DEVICES"] == "3,0"
    assert "only the driver knows" in reason(*more, ROCR_VISIBLE_DEVICES="GPU-12ab")


def test_fewer_ranks_than_gpus_are_the_first_and_more_are_refused() -> None:
    assert [gpu.index for gpu in peers(*GPUS, wanted=2).gpus] == [0, 1]
    with pytest.raises(CallerMistake, match="4 of 'NVIDIA H200' can be seen here"):
        peers(*GPUS, wanted=5)
    with pytest.raises(CallerMistake, match="no other"):
        peers(GPUS[0], wanted=2)


def test_a_cpu_is_measured_between_processes_where_that_is_asked_for() -> None:
    found = peers(CPU, wanted=3)
    assert (found.backend, found.torch_devices) == ("gloo", ("cpu",) * 3)
    assert found.environment["GLOO_SOCKET_IFNAME"].startswith("lo")
    assert peers(CPU, wanted=2, GLOO_SOCKET_IFNAME="eth1").environment["GLOO_SOCKET_IFNAME"] == "eth1"
    assert "--ranks 2" in reason(CPU)


def test_more_processes_than_memory_holds_are_refused_before_any_starts() -> None:
    with pytest.raises(CallerMistake, match="memory is free for"):
        peers(CPU, wanted=1_000_000)
