"""ECC errors, memory that waits for repair, and Xids in the kernel's log."""

import dataclasses

import pytest

from flatout.records.machine import KernelXid, Machine
from tests.fakes.machines import changed, healthy_h200, with_device, with_sample, without_gpu
from tests.unit.hardware.health.looking import look, only


def with_xids(*numbers: int, bus: str = "0000:3b:00") -> Machine:
    entries = tuple(KernelXid(pci_bus_id=bus, xid=number, text="") for number in numbers)
    return dataclasses.replace(healthy_h200(), kernel_xids=entries)


# --- gpu.ecc ----------------------------------------------------------------------------------------------


def test_uncorrected_errors_since_boot_fail() -> None:
    result = only("gpu.ecc", with_sample(healthy_h200(), ecc_uncorrected_since_boot=3))

    assert (result.status, result.device_index) == ("fail", 0)
    assert result.evidence == "3 uncorrected errors since boot"
    assert result.fix.startswith("nvidia-smi -q -d ECC,ROW_REMAPPER -i 0 ")


def test_uncorrected_errors_of_former_days_warn() -> None:
    result = only("gpu.ecc", with_sample(healthy_h200(), ecc_uncorrected_lifetime=2))

    assert result.status == "warn"
    assert "none since boot; 2 uncorrected" in result.evidence
    assert result.fix == "nvidia-smi -q -d ECC,ROW_REMAPPER -i 0"


def test_corrected_errors_are_what_ecc_is_for() -> None:
    result = only("gpu.ecc", with_sample(healthy_h200(), ecc_corrected_since_boot=12))

    assert (result.status, result.evidence) == ("ok", "ECC is on; 12 corrected errors since boot")


def test_ecc_that_is_off_is_said_and_is_no_fault() -> None:
    result = only("gpu.ecc", with_sample(healthy_h200(), ecc_enabled=False))

    assert result.status == "ok"
    assert "errors go unseen" in result.evidence


def test_errors_of_an_amd_card_count_although_its_driver_has_no_ecc_switch() -> None:
    machine = with_sample(healthy_h200(), ecc_enabled=None, ecc_uncorrected_since_boot=1)

    result = only("gpu.ecc", with_device(machine, vendor="amd"))

    assert result.status == "fail"
    assert "1 uncorrected" in result.evidence
    assert "nvidia" not in result.fix


def test_counters_that_cannot_be_read_are_not_zero() -> None:
    machine = with_sample(
        healthy_h200(),
        ecc_uncorrected_since_boot=None,
        unknown={"ecc_uncorrected_since_boot": "no permission"},
    )

    result = only("gpu.ecc", machine)

    assert result.status == "unknown"
    assert "no permission" in result.evidence


def test_a_missing_count_of_corrected_errors_is_called_unknown() -> None:
    result = only("gpu.ecc", with_sample(healthy_h200(), ecc_corrected_since_boot=None))

    assert "corrected errors unknown" in result.evidence


def test_cards_without_ecc_readings_stay_silent() -> None:
    blind = with_sample(
        healthy_h200(), ecc_enabled=None, ecc_uncorrected_since_boot=None, ecc_uncorrected_lifetime=None
    )
    assert look("gpu.ecc", blind) == []
    assert look("gpu.ecc", with_sample(healthy_h200(), state="down")) == []
    assert look("gpu.ecc", with_device(healthy_h200(), parent_uuid="GPU-parent")) == []


# --- gpu.memory-repair ------------------------------------------------------------------------------------


def test_a_row_that_could_not_be_replaced_fails() -> None:
    result = only(
        "gpu.memory-repair",
        with_sample(healthy_h200(), memory_repair_failed=True, memory_repair_pending=True),
    )

    assert (result.status, result.device_index) == ("fail", 0)
    assert "could not be replaced" in result.evidence
    assert result.fix == "replace this GPU"


def test_a_repair_that_waits_for_a_reset_warns_with_the_reset() -> None:
    result = only("gpu.memory-repair", with_sample(healthy_h200(), memory_repair_pending=True))

    assert result.status == "warn"
    assert result.fix.startswith("sudo nvidia-smi --gpu-reset -i 0 ")


def test_rows_that_were_replaced_are_counted_and_fine() -> None:
    result = only("gpu.memory-repair", with_sample(healthy_h200(), memory_rows_remapped=2))

    assert (result.status, result.evidence) == ("ok", "no memory repair pending; 2 replaced so far")


def test_older_cards_that_only_know_pending_pages_are_judged_by_them() -> None:
    machine = with_sample(healthy_h200(), memory_repair_failed=None)

    assert only("gpu.memory-repair", machine).status == "ok"


def test_a_pending_state_that_cannot_be_read_is_not_taken_for_none() -> None:
    assert (
        only("gpu.memory-repair", with_sample(healthy_h200(), memory_repair_pending=None)).status == "unknown"
    )


def test_without_repair_readings_nothing_is_said() -> None:
    blind = with_sample(healthy_h200(), memory_repair_failed=None, memory_repair_pending=None)

    assert look("gpu.memory-repair", blind) == []


# --- gpu.xid ----------------------------------------------------------------------------------------------


def test_a_gpu_that_fell_off_the_bus_fails_with_its_address() -> None:
    result = only("gpu.xid", with_xids(79))

    assert result.status == "fail"
    assert result.evidence == "Xid 79 (GPU has fallen off the bus) x1 on 0000:3b:00"
    assert result.fix.startswith("sudo dmesg | grep -i xid ")


@pytest.mark.parametrize("number", [13, 31, 43, 45, 68, 69])
def test_a_jobs_own_fault_only_warns(number: int) -> None:
    result = only("gpu.xid", with_xids(number, number))

    assert result.status == "warn"
    assert f"Xid {number}" in result.evidence
    assert "x2" in result.evidence
    assert "job's own fault" in result.evidence


def test_both_kinds_are_told_apart() -> None:
    results = look("gpu.xid", with_xids(31, 48))

    assert [result.status for result in results] == ["fail", "warn"]
    assert "Xid 48" in results[0].evidence
    assert "Xid 31" in results[1].evidence


def test_an_unheard_of_xid_is_taken_for_hardware() -> None:
    assert "see the Xid catalogue" in only("gpu.xid", with_xids(999)).evidence


def test_kinds_beyond_the_fourth_are_counted() -> None:
    assert "and 2 kinds more" in only("gpu.xid", with_xids(48, 62, 64, 74, 79, 95)).evidence
    assert "more" not in only("gpu.xid", with_xids(48, 62, 64, 74)).evidence


def test_a_clean_log_is_fine() -> None:
    assert only("gpu.xid", healthy_h200()).status == "ok"


def test_a_log_that_cannot_be_read_is_unknown_with_the_reason_and_the_command() -> None:
    machine = dataclasses.replace(
        healthy_h200(), kernel_xids=None, unknown={"kernel_xids": "dmesg exited with 1"}
    )

    result = only("gpu.xid", machine)

    assert (result.status, result.evidence) == ("unknown", "dmesg exited with 1")
    assert result.fix == "sudo dmesg | grep -i xid"


def test_without_nvidia_cards_the_log_is_left_alone() -> None:
    assert look("gpu.xid", without_gpu()) == []
    assert look("gpu.xid", with_device(with_xids(79), vendor="amd")) == []


@pytest.mark.parametrize(
    ("xid", "status"), [(79, "fail"), (95, "fail"), (63, "warn"), (154, "warn"), (31, "warn")]
)
def test_only_what_is_known_to_be_the_hardwares_fails(xid: int, status: str) -> None:
    entry = KernelXid(pci_bus_id="0000:65:00", xid=xid, text="")
    assert only("gpu.xid", changed(healthy_h200(), kernel_xids=(entry,))).status == status
