"""GPUs of the catalogue, as each target calls them."""

import pytest

from flatout.hardware.catalogue import catalogue
from flatout.records.errors import CallerMistake
from flatout.records.launch import Gpus
from flatout.runtime.launching.gpu_names import (
    _SKYPILOT,
    kubernetes_names,
    resolve,
    skypilot_names,
    slurm_type,
)


def gpus(name: str, **more: str) -> Gpus:
    return Gpus(per_node=8, ids=resolve(name) if name else (), **more)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("h100-80gb", "h100"),
        ("a100", "a100"),
        ("rtx-pro-6000-server", "rtx_pro_6000_server"),
        ("", ""),
        ("l4", "l4"),
    ],
)
def test_slurm_knows_a_family(name: str, expected: str) -> None:
    assert slurm_type(gpus(name)) == expected


def test_names_of_two_families_are_refused_on_slurm() -> None:
    with pytest.raises(CallerMistake, match="l40, l40s"):
        slurm_type(Gpus(per_node=1, ids=("l40", "l40s")))


def test_nodes_are_chosen_by_what_their_driver_calls_the_gpu() -> None:
    resource, label, values = kubernetes_names(gpus("h100-80gb"))
    assert (resource, label) == ("nvidia.com/gpu", "nvidia.com/gpu.product")
    assert values == ["NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-PCIe"]
    resource, label, values = kubernetes_names(gpus("mi300x"))
    assert (resource, label) == ("amd.com/gpu", "amd.com/gpu.product-name")
    assert "AMD_Instinct_MI300X_OAM" in values


def test_a_vendor_without_a_device_plugin_is_refused() -> None:
    with pytest.raises(CallerMistake, match="no device plugin"):
        kubernetes_names(gpus("m4-10"))


def test_skypilot_has_names_of_its_own() -> None:
    assert skypilot_names(gpus("h100-80gb")) == ["H100"]
    assert skypilot_names(gpus("h100")) == ["H100", "H100-NVL"]
    with pytest.raises(CallerMistake, match="mi100"):
        skypilot_names(gpus("mi100"))


def test_a_name_of_the_cluster_goes_before_all() -> None:
    named = gpus("h100", name_there="hopper")
    assert (slurm_type(named), skypilot_names(named)) == ("hopper", ["hopper"])
    assert kubernetes_names(named)[2] == ["hopper"]


def test_every_name_of_skypilots_is_of_a_gpu_in_the_catalogue() -> None:
    assert set(_SKYPILOT) <= {gpu.id for gpu in catalogue()}
