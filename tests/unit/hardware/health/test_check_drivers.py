"""Is there a GPU, does its driver answer, is the driver new enough."""

import dataclasses

import pytest

from flatout.hardware.nvidia.source import LOADED_BUT_EMPTY
from flatout.records.machine import VendorStatus
from tests.fakes.machines import (
    changed,
    h200,
    h200_sample,
    healthy_h200,
    with_device,
    with_gpus,
    with_host,
    with_sample,
    with_torch,
    without_gpu,
)
from tests.unit.hardware.health.looking import look, only

# --- device.present ---------------------------------------------------------------------------------------


def test_a_gpu_is_named_with_its_memory() -> None:
    result = only("device.present", healthy_h200())

    assert (result.status, result.device_index) == ("ok", 0)
    assert result.evidence == "NVIDIA H200, 140.4 GiB"


def test_no_gpu_at_all_warns_and_says_how_to_get_one() -> None:
    result = only("device.present", without_gpu())

    assert result.status == "warn"
    assert "no GPU" in result.evidence
    assert "--gpus all" in result.fix


def test_an_nvidia_card_on_the_bus_without_a_driver_fails_with_the_package_to_install() -> None:
    result = only("device.present", with_host(without_gpu(), pci_gpu_vendors=("intel", "nvidia")))

    assert result.status == "fail"
    assert "NVIDIA" in result.evidence
    assert "Intel" not in result.evidence
    assert "sudo apt install nvidia-driver" in result.fix


def test_in_a_container_the_way_to_the_card_is_a_flag_of_the_container() -> None:
    machine = with_host(without_gpu(), pci_gpu_vendors=("nvidia",), container=True)

    assert "--gpus all" in only("device.present", machine).fix


@pytest.mark.parametrize(("container", "fix"), [(True, "--device=/dev/kfd"), (False, "ROCm")])
def test_an_amd_card_without_a_driver_is_not_sent_to_nvidia(container: bool, fix: str) -> None:
    machine = with_host(without_gpu(), pci_gpu_vendors=("amd",), container=container)

    result = only("device.present", machine)

    assert result.status == "warn"  # it may be a processor's own graphics
    assert fix in result.fix
    assert "nvidia" not in result.fix.lower()


def test_integrated_intel_graphics_without_a_driver_are_no_fault() -> None:
    assert only("device.present", with_host(without_gpu(), pci_gpu_vendors=("intel",))).status == "warn"


def test_an_unreadable_bus_is_not_taken_for_a_machine_in_order() -> None:
    assert only("device.present", with_host(without_gpu(), pci_gpu_vendors=None)).status == "warn"


def test_a_gpu_whose_memory_cannot_be_read_is_still_shown() -> None:
    result = only("device.present", with_device(healthy_h200(), memory_total_bytes=None))

    assert result.evidence == "NVIDIA H200, memory unknown"


# --- device.answers ---------------------------------------------------------------------------------------


def test_a_lost_gpu_fails_and_the_reset_names_only_that_one() -> None:
    machine = with_gpus(
        healthy_h200(),
        (h200(), h200_sample()),
        (
            h200(index=1, uuid="GPU-lost"),
            h200_sample(index=1, uuid="GPU-lost", state="down", state_reason="GPU is lost"),
        ),
    )

    result = only("device.answers", machine)

    assert (result.status, result.device_index) == ("fail", 1)
    assert "GPU is lost" in result.evidence
    assert result.fix.startswith("sudo nvidia-smi --gpu-reset -i 1 ")


def test_a_stale_gpu_fails_with_what_it_waits_for() -> None:
    machine = with_sample(healthy_h200(), state="stale", state_reason="no answer within 2 s")

    assert "no answer within 2 s" in only("device.answers", machine).evidence


def test_a_lost_amd_gpu_is_not_sent_to_nvidia_smi() -> None:
    machine = with_device(with_sample(healthy_h200(), state="down", state_reason="gone"), vendor="amd")

    assert only("device.answers", machine).fix == "reboot"


def test_gpus_that_answer_are_not_mentioned() -> None:
    assert look("device.answers", healthy_h200()) == []


def test_without_gpus_nothing_is_said_about_answers() -> None:
    assert look("device.answers", without_gpu()) == []


# --- driver.answers ---------------------------------------------------------------------------------------


def test_a_driver_that_does_not_match_its_library_fails_with_the_reload() -> None:
    status = VendorStatus(
        vendor="nvidia",
        problem_code="nvidia.version_mismatch",
        problem="NVML answers: Driver/library version mismatch (kernel module 570.86.15)",
        fix="sudo rmmod nvidia && sudo modprobe nvidia   # or reboot",
    )

    result = only("driver.answers", dataclasses.replace(without_gpu(), vendors=(status,)))

    assert result.status == "fail"
    assert "kernel module 570.86.15" in result.evidence
    assert result.fix == status.fix


def test_a_driver_that_answers_is_shown_with_its_version() -> None:
    result = only("driver.answers", healthy_h200())

    assert (result.status, result.evidence) == ("ok", "NVIDIA driver 580.159.04")


def test_a_vendor_without_hardware_is_not_mentioned() -> None:
    assert look("driver.answers", without_gpu()) == []


def test_a_driver_without_a_version_says_so() -> None:
    result = only("driver.answers", with_device(healthy_h200(), driver_version=None))

    assert "version unknown" in result.evidence


# --- driver.cuda ------------------------------------------------------------------------------------------


def test_a_driver_of_an_older_major_version_fails_with_both_versions() -> None:
    result = only("driver.cuda", with_device(healthy_h200(), runtime_version="CUDA 12.8"))

    assert result.status == "fail"
    assert "CUDA 12.8" in result.evidence
    assert "CUDA 13.0" in result.evidence
    assert "driver to one for CUDA 13" in result.fix
    assert "torch for CUDA 12" in result.fix


@pytest.mark.parametrize(("driver", "torch"), [("CUDA 12.2", "CUDA 12.8"), ("CUDA 13.0", "CUDA 12.6")])
def test_an_older_minor_version_or_a_newer_driver_is_fine(driver: str, torch: str) -> None:
    machine = with_torch(with_device(healthy_h200(), runtime_version=driver), build=torch)

    assert only("driver.cuda", machine).status == "ok"


def test_versions_that_cannot_be_read_are_unknown() -> None:
    assert only("driver.cuda", with_device(healthy_h200(), runtime_version="CUDA")).status == "unknown"
    assert only("driver.cuda", with_torch(healthy_h200(), build="CUDA nightly")).status == "unknown"


def test_without_a_driver_version_or_a_cuda_build_nothing_is_compared() -> None:
    assert look("driver.cuda", with_device(healthy_h200(), runtime_version=None)) == []
    assert look("driver.cuda", with_torch(healthy_h200(), build=None)) == []
    assert look("driver.cuda", with_torch(healthy_h200(), build="ROCm 6.4")) == []
    assert look("driver.cuda", dataclasses.replace(healthy_h200(), frameworks=())) == []


def test_a_job_without_a_gpu_on_a_gpu_node_is_sent_to_the_scheduler_and_not_to_the_driver() -> None:
    empty = VendorStatus(vendor="nvidia", absent_reason=LOADED_BUT_EMPTY)
    machine = changed(with_host(without_gpu(), pci_gpu_vendors=("nvidia",)), vendors=(empty,))
    result = only("device.present", machine)
    assert result.status == "warn"
    assert "--gpus=1" in result.fix
    assert "apt" not in result.fix


@pytest.mark.parametrize(("on_bus", "told"), [((), False), (("nvidia",), True), (None, True)])
def test_a_missing_driver_matters_only_where_there_is_a_card(
    on_bus: tuple[str, ...] | None, told: bool
) -> None:
    status = VendorStatus(
        vendor="nvidia", problem_code="nvidia.driver_not_loaded", problem="not loaded", fix="x"
    )
    machine = changed(with_host(without_gpu(), pci_gpu_vendors=on_bus), vendors=(status,))
    assert bool(look("driver.answers", machine)) is told
