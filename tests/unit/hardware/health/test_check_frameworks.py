"""Is the right build installed, and does it really compute."""

import dataclasses
from typing import Any

import pytest

from flatout.hardware.health.frameworks import kernel_support
from flatout.records.device import Vendor
from flatout.records.machine import ComputeProof, Framework, FrameworkName, Machine
from tests.fakes.machines import (
    H200_UUID,
    h200,
    h200_sample,
    healthy_h200,
    with_device,
    with_environment,
    with_framework,
    with_gpus,
    with_torch,
    without_gpu,
)
from tests.unit.hardware.health.looking import look, only

ON_CPU = ComputeProof(device="cpu", name="CPU", computed=True)


def without_frameworks() -> Machine:
    return dataclasses.replace(healthy_h200(), frameworks=())


def with_other(name: FrameworkName, **facts: Any) -> Machine:
    return with_framework(healthy_h200(), Framework(name=name, installed=True, **facts))


# --- torch.installed --------------------------------------------------------------------------------------


def test_a_torch_that_cannot_be_imported_fails_with_its_error() -> None:
    problem = "cannot import torch: ImportError: libcudnn.so.9: cannot open shared object file"

    result = only("torch.installed", with_torch(healthy_h200(), problem=problem, version=None))

    assert (result.status, result.evidence) == ("fail", problem)
    assert result.fix.startswith("python -c 'import torch'")


def test_no_torch_warns_with_the_command_to_install_it() -> None:
    machine = with_framework(healthy_h200(), Framework(name="torch", installed=False))

    result = only("torch.installed", machine)

    assert (result.status, result.fix) == ("warn", "pip install torch   # with that environment's pip")
    assert "not installed" in result.evidence


@pytest.mark.parametrize("version", ["2.9.1+cu128", "1.13.0"])
def test_a_torch_before_2_10_warns_with_the_upgrade(version: str) -> None:
    result = only("torch.installed", with_torch(healthy_h200(), version=version))

    assert (result.status, result.fix) == ("warn", "pip install -U torch")
    assert version in result.evidence


@pytest.mark.parametrize("version", ["2.10.0", "2.11.0a0+git1234", "3.0"])
def test_torch_2_10_and_newer_is_fine(version: str) -> None:
    assert only("torch.installed", with_torch(healthy_h200(), version=version)).status == "ok"


@pytest.mark.parametrize("version", [None, "", "main"])
def test_a_version_that_cannot_be_read_is_unknown(version: str | None) -> None:
    assert only("torch.installed", with_torch(healthy_h200(), version=version)).status == "unknown"


def test_nothing_is_said_of_a_torch_that_nobody_looked_for() -> None:
    machine = without_frameworks()
    for check in ("torch.installed", "torch.build", "torch.architecture", "torch.computes"):
        assert look(check, machine) == []


# --- torch.build ------------------------------------------------------------------------------------------


def test_a_cpu_build_beside_a_gpu_fails_with_the_command_to_reinstall() -> None:
    result = only("torch.build", with_torch(healthy_h200(), version="2.11.0+cpu", build="CPU"))

    assert (result.status, result.device_index) == ("fail", 0)
    assert "torch 2.11.0+cpu is a CPU build" in result.evidence
    assert result.fix.startswith("pip install --force-reinstall torch==2.")


@pytest.mark.parametrize(
    ("vendor", "status", "fix"),
    [("amd", "fail", "ROCm"), ("intel", "warn", "XPU"), ("apple", "fail", "arm64")],
)
def test_each_vendor_is_sent_to_its_own_build(vendor: Vendor, status: str, fix: str) -> None:
    result = only("torch.build", with_torch(with_device(healthy_h200(), vendor=vendor), build="CPU"))

    assert result.status == status
    assert fix in result.fix


@pytest.mark.parametrize(
    ("vendor", "build"),
    [("nvidia", "CUDA 12.8"), ("amd", "ROCm 6.4"), ("intel", "XPU 2025.1"), ("apple", "MPS")],
)
def test_the_build_for_the_card_is_fine(vendor: Vendor, build: str) -> None:
    result = only("torch.build", with_torch(with_device(healthy_h200(), vendor=vendor), build=build))

    assert (result.status, result.evidence) == ("ok", f"torch is built for {build}")


@pytest.mark.parametrize("second", ["intel", "amd"])
def test_a_second_gpu_of_another_vendor_asks_for_no_reinstall_that_loses_the_first(second: Vendor) -> None:
    other = (h200(vendor=second, name="integrated", uuid=None), h200_sample(uuid=None))
    machine = with_gpus(healthy_h200(), (h200(), h200_sample()), other)

    results = look("torch.build", machine)

    assert [(result.status, result.fix) for result in results] == [("ok", ""), ("ok", "")]
    assert "stays unused" in results[1].evidence


def test_a_cpu_build_without_a_gpu_is_fine() -> None:
    assert look("torch.build", without_gpu()) == []


def test_an_unknown_build_is_not_judged() -> None:
    assert look("torch.build", with_torch(healthy_h200(), build=None)) == []


# --- torch.architecture -----------------------------------------------------------------------------------


def test_a_card_newer_than_the_build_fails_with_what_the_build_has() -> None:
    machine = with_torch(
        with_device(healthy_h200(), compute_capability="12.0"), architectures=("sm_80", "sm_90")
    )

    result = only("torch.architecture", machine)

    assert (result.status, result.device_index) == ("fail", 0)
    assert "12.0 is not in this build (sm_80 sm_90)" in result.evidence
    assert "torch build that has this architecture" in result.fix


def test_a_card_with_only_ptx_warns_of_the_first_use() -> None:
    machine = with_torch(healthy_h200(), architectures=("sm_80", "compute_80"))

    result = only("torch.architecture", machine)

    assert result.status == "warn"
    assert "only PTX for compute capability 9.0" in result.evidence


def test_a_card_that_the_build_knows_is_fine() -> None:
    assert only("torch.architecture", healthy_h200()).status == "ok"


def test_without_a_list_a_capability_or_an_nvidia_card_nothing_is_compared() -> None:
    assert look("torch.architecture", with_torch(healthy_h200(), architectures=())) == []
    assert look("torch.architecture", with_device(healthy_h200(), compute_capability=None)) == []
    assert look("torch.architecture", with_device(healthy_h200(), vendor="amd")) == []


@pytest.mark.parametrize(
    ("capability", "architectures", "how"),
    [
        ("9.0", "sm_90", "binary"),
        ("8.9", "sm_86", "binary"),
        ("8.0", "sm_86", "none"),
        ("10.0", "sm_90", "none"),
        ("10.0", "compute_90", "ptx"),
        ("8.0", "compute_90", "none"),
        ("9.0", "sm_90a", "binary"),
        ("10.0", "sm_100", "binary"),
        ("10.3", "sm_100", "binary"),
        ("10.3", "sm_100a", "none"),
        ("10.3", "sm_100f", "binary"),
        ("10.0", "compute_90a", "none"),
        ("12.0", "compute_100f", "none"),
        ("12.0", "sm_120", "binary"),
        ("12.0", "sm_100", "none"),
        ("1.0", "sm_100", "none"),
        ("1.2", "sm_120", "none"),
        ("10.0", "compute_80 sm_90 sm_100", "binary"),
        ("12.1", "sm_100 compute_120", "ptx"),
        ("9.0", "gfx942 nonsense", "none"),
        ("9.0", "", "none"),
    ],
)
def test_which_kernels_run_on_which_card(capability: str, architectures: str, how: str) -> None:
    assert kernel_support(capability, tuple(architectures.split())) == how


# --- torch.computes ---------------------------------------------------------------------------------------


def test_a_gpu_that_computes_is_named() -> None:
    result = only("torch.computes", healthy_h200())

    assert (result.status, result.device_index) == ("ok", 0)
    assert result.evidence == "torch on cuda:0 (NVIDIA H200) computes, and agrees with the CPU"


@pytest.mark.parametrize(
    ("name", "device", "said"),
    [
        ("tensorflow", "/CPU:0", "tensorflow on /CPU:0 computes"),
        ("tensorflow", "/GPU:0", "tensorflow on /GPU:0 computes"),
        ("jax", "TFRT_CPU_0", "jax on TFRT_CPU_0 computes"),
    ],
)
def test_agreement_is_told_where_it_was_looked_for(name: Any, device: str, said: str) -> None:
    machine = with_other(name, proofs=(ComputeProof(device=device, computed=True),))
    assert said in [one.evidence for one in look(f"{name}.computes", machine)]


def test_a_product_that_fails_is_reported_with_its_error_on_its_gpu() -> None:
    proof = ComputeProof(
        device="cuda:0", uuid=H200_UUID.removeprefix("GPU-"), problem="AcceleratorError: no kernel image"
    )

    result = only("torch.computes", with_torch(healthy_h200(), proofs=(proof,)))

    assert (result.status, result.device_index) == ("fail", 0)
    assert result.evidence == "torch on cuda:0: AcceleratorError: no kernel image"
    assert "cuda:0" in result.fix


def test_one_failing_gpu_does_not_hide_the_one_that_works() -> None:
    good, bad = ComputeProof(device="cuda:0", computed=True), ComputeProof(device="cuda:1", problem="wrong")

    results = look("torch.computes", with_torch(healthy_h200(), proofs=(good, bad)))

    assert [result.status for result in results] == ["ok", "fail"]


def test_a_torch_that_sees_only_the_cpu_beside_a_gpu_fails_with_the_reinstall() -> None:
    results = look("torch.computes", with_torch(healthy_h200(), build="CPU", proofs=(ON_CPU,)))

    assert [result.status for result in results] == ["ok", "fail"]
    assert "sees only the CPU" in results[1].evidence
    assert results[1].fix.startswith("pip install --force-reinstall torch==2.")


def test_a_gpu_hidden_by_the_environment_is_unhidden_instead_of_reinstalled() -> None:
    machine = with_environment(with_torch(healthy_h200(), proofs=(ON_CPU,)), CUDA_VISIBLE_DEVICES="")

    assert look("torch.computes", machine)[-1].fix == "unset CUDA_VISIBLE_DEVICES"


def test_a_variable_that_hides_nothing_is_not_blamed() -> None:
    machine = with_environment(
        with_torch(healthy_h200(), build="CPU", proofs=(ON_CPU,)), CUDA_VISIBLE_DEVICES="0"
    )

    assert "reinstall" in look("torch.computes", machine)[-1].fix


def test_the_right_build_that_sees_no_gpu_is_asked_why() -> None:
    assert "torch.cuda.init()" in look("torch.computes", with_torch(healthy_h200(), proofs=(ON_CPU,)))[-1].fix


def test_intel_graphics_beside_a_cpu_build_only_warn() -> None:
    machine = with_device(with_torch(healthy_h200(), build="CPU", proofs=(ON_CPU,)), vendor="intel")

    result = look("torch.computes", machine)[-1]

    assert result.status == "warn"
    assert "XPU" in result.fix


def test_computing_on_the_cpu_is_fine_without_a_gpu() -> None:
    assert only("torch.computes", without_gpu()).status == "ok"


def test_a_torch_that_was_tried_nowhere_is_unknown() -> None:
    assert only("torch.computes", with_torch(healthy_h200(), proofs=())).status == "unknown"


def test_a_broken_torch_is_reported_once_by_its_own_check() -> None:
    assert look("torch.computes", with_torch(healthy_h200(), problem="cannot import torch", proofs=())) == []


# --- tensorflow.computes, jax.computes --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "device", "fix"),
    [
        ("tensorflow", "/CPU:0", "pip install -U 'tensorflow[and-cuda]'"),
        ("jax", "TFRT_CPU_0", "pip install -U 'jax[cuda12]'"),
    ],
)
def test_another_framework_on_the_cpu_warns_with_its_own_command(
    name: FrameworkName, device: str, fix: str
) -> None:
    machine = with_other(name, proofs=(ComputeProof(device=device, computed=True),))

    results = look(f"{name}.computes", machine)

    assert [result.status for result in results] == ["ok", "warn"]
    assert f"{name} sees only the CPU" in results[1].evidence
    assert results[1].fix.split("   #")[0] == fix


@pytest.mark.parametrize("name", ["tensorflow", "jax"])
def test_another_framework_on_an_amd_card_is_not_sent_to_torch_or_cuda(name: FrameworkName) -> None:
    machine = with_device(with_other(name, proofs=(ON_CPU,)), vendor="amd")

    fix = look(f"{name}.computes", machine)[-1].fix

    assert name in fix
    assert "torch" not in fix
    assert "cuda" not in fix


@pytest.mark.parametrize(("name", "device"), [("tensorflow", "/GPU:0"), ("jax", "cuda:0")])
def test_another_framework_that_computes_on_the_gpu_is_fine(name: FrameworkName, device: str) -> None:
    machine = with_other(name, proofs=(ComputeProof(device=device, computed=True),))

    assert only(f"{name}.computes", machine).status == "ok"


@pytest.mark.parametrize("name", ["tensorflow", "jax"])
def test_another_framework_that_breaks_fails_with_its_error(name: FrameworkName) -> None:
    result = only(f"{name}.computes", with_other(name, problem=f"cannot import {name}: ImportError: x"))

    assert result.status == "fail"
    assert "ImportError: x" in result.evidence
    assert result.fix.startswith(f"python -c 'import {name}'")


@pytest.mark.parametrize("name", ["tensorflow", "jax"])
def test_another_framework_that_is_absent_is_not_mentioned(name: FrameworkName) -> None:
    assert look(f"{name}.computes", healthy_h200()) == []
    assert look(f"{name}.computes", without_frameworks()) == []


@pytest.mark.parametrize("name", ["tensorflow", "jax"])
def test_another_framework_without_a_proof_is_unknown(name: FrameworkName) -> None:
    assert only(f"{name}.computes", with_other(name)).status == "unknown"
