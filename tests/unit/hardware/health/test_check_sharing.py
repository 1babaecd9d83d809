"""Who else is on the GPU, what a job may see of it, how it is partitioned."""

from typing import Any

import pytest

from flatout.records.device import DeviceProcess
from flatout.records.machine import Machine
from tests.fakes.machines import (
    H200_UUID,
    h200,
    h200_sample,
    healthy_h200,
    with_device,
    with_environment,
    with_gpus,
    with_sample,
    without_gpu,
)
from tests.unit.hardware.health.looking import look, only

MIB = 1 << 20


def two_gpus(**second: Any) -> Machine:
    facts = {"index": 1, "uuid": "GPU-second", **second}
    return with_gpus(
        healthy_h200(), (h200(), h200_sample()), (h200(**facts), h200_sample(index=1, uuid=facts["uuid"]))
    )


def held_by(*processes: DeviceProcess) -> Machine:
    return with_sample(healthy_h200(), processes=processes)


# --- gpu.visible ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["", "-1", "7", "0,0", "NoDevFiles"])
def test_a_value_that_hides_every_gpu_fails_with_the_way_back(value: str) -> None:
    result = only("gpu.visible", with_environment(healthy_h200(), CUDA_VISIBLE_DEVICES=value))

    assert (result.status, result.fix) == ("fail", "unset CUDA_VISIBLE_DEVICES")
    assert "CUDA_VISIBLE_DEVICES" in result.evidence


def test_a_number_that_does_not_exist_warns_of_what_it_cuts_off() -> None:
    result = only("gpu.visible", with_environment(two_gpus(), CUDA_VISIBLE_DEVICES="1,5,0"))

    assert (result.status, result.fix) == ("warn", "unset CUDA_VISIBLE_DEVICES")
    assert "'5' is no GPU here" in result.evidence


def test_a_reordered_list_says_which_card_is_which() -> None:
    result = only("gpu.visible", with_environment(two_gpus(), CUDA_VISIBLE_DEVICES="1,0"))

    assert result.status == "ok"
    assert "cuda:0 is GPU 1, cuda:1 is GPU 0" in result.evidence


def test_a_gpu_by_its_uuid_is_found() -> None:
    result = only("gpu.visible", with_environment(two_gpus(), CUDA_VISIBLE_DEVICES=H200_UUID))

    assert result.status == "ok"
    assert "cuda:0 is GPU 0" in result.evidence


def test_different_cards_without_an_order_are_unknown_with_the_order_to_set() -> None:
    machine = with_environment(two_gpus(name="NVIDIA A100"), CUDA_VISIBLE_DEVICES="0")

    result = only("gpu.visible", machine)

    assert (result.status, result.fix) == ("unknown", "export CUDA_DEVICE_ORDER=PCI_BUS_ID")


def test_without_the_variable_or_without_nvidia_nothing_is_said() -> None:
    assert look("gpu.visible", healthy_h200()) == []
    assert look("gpu.visible", with_environment(without_gpu(), CUDA_VISIBLE_DEVICES="0")) == []


# --- gpu.mig ----------------------------------------------------------------------------------------------


def test_mig_without_instances_fails_with_the_command_that_makes_one() -> None:
    result = only("gpu.mig", with_device(healthy_h200(), mig_enabled=True))

    assert (result.status, result.device_index) == ("fail", 0)
    assert "no instance" in result.evidence
    assert result.fix.startswith("sudo nvidia-smi mig -cgi 0 -C -i 0 ")


def test_mig_with_instances_names_them() -> None:
    instance = h200(index=1, uuid="MIG-1", name="NVIDIA H200 MIG 1g.18gb", parent_uuid=H200_UUID)
    machine = with_gpus(
        healthy_h200(),
        (h200(mig_enabled=True), h200_sample()),
        (instance, h200_sample(index=1, uuid="MIG-1")),
    )

    result = only("gpu.mig", machine)

    assert result.status == "ok"
    assert "1 instances: NVIDIA H200 MIG 1g.18gb" in result.evidence


def test_another_gpus_instances_do_not_count() -> None:
    machine = two_gpus(mig_enabled=True, parent_uuid="")
    instance = h200(index=2, uuid="MIG-1", parent_uuid=H200_UUID)
    pairs = [
        *zip(machine.gpus, machine.samples, strict=False),
        (instance, h200_sample(index=2, uuid="MIG-1")),
    ]

    result = only("gpu.mig", with_gpus(machine, *pairs))

    assert (result.status, result.device_index) == ("fail", 1)
    assert "-i 1" in result.fix


@pytest.mark.parametrize("enabled", [False, None])
def test_mig_off_or_not_known_is_not_mentioned(enabled: bool | None) -> None:
    assert look("gpu.mig", with_device(healthy_h200(), mig_enabled=enabled)) == []


def test_instances_of_a_gpu_without_a_uuid_cannot_be_told() -> None:
    machine = with_device(healthy_h200(), mig_enabled=True, uuid=None, unknown={"uuid": "no permission"})

    result = only("gpu.mig", machine)

    assert result.status == "unknown"
    assert "no permission" in result.evidence


# --- gpu.compute-mode -------------------------------------------------------------------------------------


def test_a_gpu_that_takes_no_job_fails_with_the_mode_to_set() -> None:
    result = only("gpu.compute-mode", with_sample(healthy_h200(), compute_mode="prohibited"))

    assert (result.status, result.device_index) == ("fail", 0)
    assert "'prohibited'" in result.evidence
    assert result.fix == "sudo nvidia-smi -i 0 -c DEFAULT"


def test_a_gpu_that_takes_one_process_warns() -> None:
    result = only("gpu.compute-mode", with_sample(healthy_h200(), compute_mode="exclusive_process"))

    assert result.status == "warn"
    assert "exclusive_process" in result.evidence
    assert result.fix == "sudo nvidia-smi -i 0 -c DEFAULT"


@pytest.mark.parametrize("mode", ["default", None])
def test_the_default_mode_and_an_unknown_one_are_not_mentioned(mode: str | None) -> None:
    assert look("gpu.compute-mode", with_sample(healthy_h200(), compute_mode=mode)) == []


# --- gpu.processes ----------------------------------------------------------------------------------------


def test_a_forgotten_notebook_warns_with_who_and_how_much() -> None:
    notebook = DeviceProcess(pid=4242, memory_bytes=20 << 30, name="python", user="ada", age_s=9e5)

    result = only("gpu.processes", held_by(notebook))

    assert (result.status, result.device_index) == ("warn", 0)
    assert result.evidence == "PID 4242 (python, ada) holds 20.0 GiB"
    assert result.fix.startswith("ps -fp 4242 ")


def test_a_foreign_pid_is_an_unknown_process() -> None:
    result = only("gpu.processes", held_by(DeviceProcess(pid=77, memory_bytes=None)))

    assert result.status == "warn"
    assert result.evidence == "PID 77 (unknown process) holds an unknown amount"


def test_a_process_without_a_user_is_named_alone() -> None:
    process = DeviceProcess(pid=77, memory_bytes=64 * MIB, name="python")

    assert only("gpu.processes", held_by(process)).evidence == "PID 77 (python) holds 64 MiB"


def test_more_than_four_are_counted_and_all_are_in_the_command() -> None:
    crowd = [DeviceProcess(pid=pid, memory_bytes=1 << 30, name="w", user="u") for pid in range(1, 7)]

    result = only("gpu.processes", held_by(*crowd))

    assert result.evidence.endswith("; and 2 more")
    assert result.fix.startswith("ps -fp 1,2,3,4,5,6 ")
    assert "more" not in only("gpu.processes", held_by(*crowd[:4])).evidence


def test_a_process_with_next_to_nothing_is_let_pass() -> None:
    small = DeviceProcess(pid=9, memory_bytes=64 * MIB - 1, name="nvidia-settings", user="ada")

    result = only("gpu.processes", held_by(small))

    assert (result.status, result.evidence) == ("ok", "no other process holds its memory")


def test_processes_that_cannot_be_listed_are_unknown() -> None:
    machine = with_sample(healthy_h200(), processes=None, unknown={"processes": "not supported"})

    result = only("gpu.processes", machine)

    assert (result.status, result.evidence) == ("unknown", "not supported")


def test_other_vendors_and_lost_gpus_without_a_list_stay_silent() -> None:
    blind = with_sample(healthy_h200(), processes=None)
    assert look("gpu.processes", with_device(blind, vendor="apple")) == []
    assert look("gpu.processes", with_sample(blind, state="down")) == []


def test_a_desktop_on_the_gpu_is_no_forgotten_job() -> None:
    desktop = DeviceProcess(pid=1200, kind="graphics", memory_bytes=900 * MIB, name="Xorg", user="root")
    assert only("gpu.processes", with_sample(healthy_h200(), processes=(desktop,))).status == "ok"


def test_under_a_scheduler_nobody_is_told_to_take_the_others_gpus() -> None:
    hidden = with_environment(healthy_h200(), CUDA_VISIBLE_DEVICES="", SLURM_JOB_ID="4711")
    result = only("gpu.visible", hidden)
    assert result.status == "fail"
    assert "unset" not in result.fix
    assert "scheduler" in result.fix


def test_who_sits_on_a_gpu_that_this_job_cannot_see_is_not_its_business() -> None:
    busy = DeviceProcess(pid=99, kind="compute", memory_bytes=900 * MIB, name="python", user="else")
    machine = with_sample(two_gpus(), at=1, processes=(busy,))
    assert [result.status for result in look("gpu.processes", machine)] == ["ok", "warn"]
    alone = with_environment(machine, CUDA_VISIBLE_DEVICES="0")
    assert [result.status for result in look("gpu.processes", alone)] == ["ok"]
