"""Shared memory, CPU and memory limits, affinity, disks."""

import dataclasses
from typing import Any

import pytest

from flatout.records.machine import Host, Machine, Place
from tests.fakes.machines import GIB, healthy_h200, with_environment, with_host
from tests.unit.hardware.health.looking import look, only

MIB = 1 << 20


def on_host(**changes: Any) -> Machine:
    return with_host(healthy_h200(), **changes)


def on_unread_host() -> Machine:
    host = Host(system="Linux", python_version="3.12")
    return dataclasses.replace(healthy_h200(), host=host)


def with_place(purpose: str, **facts: Any) -> Machine:
    known = {"path": "/data", "free_bytes": 500 * GIB, "writable": True, "filesystem": "ext4"}
    return on_host(places=(Place(purpose=purpose, **{**known, **facts}),))


# --- host.shared-memory -----------------------------------------------------------------------------------


def test_a_containers_64_mib_of_shared_memory_warns_with_the_flag() -> None:
    result = only("host.shared-memory", on_host(shm_total_bytes=64 * MIB, container=True))

    assert result.status == "warn"
    assert "/dev/shm has 64 MiB" in result.evidence
    assert result.fix.startswith("start the container with --ipc=host or --shm-size=8g")


def test_outside_a_container_shared_memory_is_remounted() -> None:
    result = only("host.shared-memory", on_host(shm_total_bytes=GIB - 1, container=False))

    assert result.fix.startswith("sudo mount -o remount,size=8G /dev/shm ")


def test_one_gib_of_shared_memory_is_enough() -> None:
    assert only("host.shared-memory", on_host(shm_total_bytes=GIB)).status == "ok"


def test_a_system_without_shared_memory_is_not_judged() -> None:
    assert look("host.shared-memory", on_host(shm_total_bytes=None)) == []


# --- host.cpu-limit ---------------------------------------------------------------------------------------


def test_a_quota_below_the_cpus_shown_warns_with_the_thread_count() -> None:
    result = only("host.cpu-limit", on_host(cpu_quota=2.5))

    assert result.status == "warn"
    assert result.evidence == "2.5 CPUs are allowed, and programs see 16"
    assert result.fix.startswith("export OMP_NUM_THREADS=2 ")


def test_less_than_one_cpu_still_means_one_thread() -> None:
    assert only("host.cpu-limit", on_host(cpu_quota=0.5)).fix.startswith("export OMP_NUM_THREADS=1 ")


@pytest.mark.parametrize(("threads", "status"), [("1", "ok"), ("2", "ok"), ("3", "warn"), ("²", "warn")])
def test_threads_that_fit_the_quota_are_the_cure(threads: str, status: str) -> None:
    machine = with_environment(on_host(cpu_quota=2.5), OMP_NUM_THREADS=threads)

    assert only("host.cpu-limit", machine).status == status


@pytest.mark.parametrize("quota", [15.5, 16.0, 32.0])
def test_a_quota_of_all_that_is_shown_is_fine(quota: float) -> None:
    assert only("host.cpu-limit", on_host(cpu_quota=quota)).status == "ok"


def test_no_quota_is_fine_when_somebody_looked() -> None:
    assert only("host.cpu-limit", healthy_h200()).evidence == "16 CPUs, no limit"


def test_a_quota_that_nobody_read_is_unknown() -> None:
    assert only("host.cpu-limit", dataclasses.replace(on_unread_host(), host=_counted())).status == "unknown"


def _counted() -> Host:
    return Host(system="Linux", python_version="3.12", cpu_count=16, memory_total_bytes=64 * GIB)


# --- host.cpu-affinity ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bound", "total"), [(1, 2), (4, 16), (1, 16)])
def test_a_process_bound_to_a_few_cpus_warns(bound: int, total: int) -> None:
    result = only("host.cpu-affinity", on_host(cpu_affinity_count=bound, cpu_count=total))

    assert result.status == "warn"
    assert result.evidence == f"bound to {bound} of {total} CPUs"
    assert result.fix.startswith("taskset -pc $$ ")


@pytest.mark.parametrize("bound", [5, 15, 16])
def test_a_process_with_more_than_a_quarter_is_fine(bound: int) -> None:
    result = only("host.cpu-affinity", on_host(cpu_affinity_count=bound))

    assert (result.status, result.fix) == ("ok", "")


def test_a_process_that_is_not_bound_is_called_free() -> None:
    assert only("host.cpu-affinity", healthy_h200()).evidence == "free to use all 16 CPUs"


@pytest.mark.parametrize("missing", ["cpu_affinity_count", "cpu_count"])
def test_an_affinity_that_cannot_be_read_is_not_judged(missing: str) -> None:
    assert look("host.cpu-affinity", on_host(**{missing: None})) == []


# --- host.cpu-governor ------------------------------------------------------------------------------------


def test_a_cpu_that_saves_power_warns_with_the_command() -> None:
    result = only("host.cpu-governor", on_host(cpu_governor="powersave"))

    assert (result.status, result.fix) == ("warn", "sudo cpupower frequency-set -g performance")
    assert "powersave" in result.evidence


@pytest.mark.parametrize("governor", ["performance", "schedutil"])
def test_other_governors_are_fine(governor: str) -> None:
    assert only("host.cpu-governor", on_host(cpu_governor=governor)).status == "ok"


@pytest.mark.parametrize("governor", [None, ""])
def test_a_machine_without_a_governor_is_not_judged(governor: str | None) -> None:
    assert look("host.cpu-governor", on_host(cpu_governor=governor)) == []


# --- host.memory-limit ------------------------------------------------------------------------------------


def test_a_container_that_is_nearly_full_warns() -> None:
    machine = on_host(memory_limit_bytes=10 * GIB, memory_limit_used_bytes=9 * GIB + 1)

    result = only("host.memory-limit", machine)

    assert result.status == "warn"
    assert result.evidence == "limited to 10.0 GiB of 128.0 GiB, 9.0 GiB in use"
    assert "--memory" in result.fix


def test_a_limit_with_room_is_fine() -> None:
    machine = on_host(memory_limit_bytes=10 * GIB, memory_limit_used_bytes=9 * GIB)

    assert only("host.memory-limit", machine).status == "ok"


def test_no_limit_is_fine_when_somebody_looked() -> None:
    assert only("host.memory-limit", healthy_h200()).evidence == "128.0 GiB, 100.0 GiB available, no limit"


def test_a_limit_whose_use_is_not_known_is_unknown() -> None:
    result = only("host.memory-limit", on_host(memory_limit_bytes=10 * GIB))

    assert result.status == "unknown"
    assert "limited to 10.0 GiB" in result.evidence


def test_a_limit_that_nobody_read_is_unknown() -> None:
    machine = dataclasses.replace(healthy_h200(), host=_counted())

    assert only("host.memory-limit", machine).status == "unknown"


# --- host.disk --------------------------------------------------------------------------------------------


def test_a_full_disk_fails_with_a_command_that_survives_pasting() -> None:
    result = only("host.disk", with_place("working folder", path="/data/my runs;x", free_bytes=512 * MIB - 1))

    assert result.status == "fail"
    assert "512 MiB free" in result.evidence
    assert result.fix.startswith("df -h '/data/my runs;x' ")


@pytest.mark.parametrize("free_bytes", [512 * MIB, 5 * GIB - 1])
def test_little_room_warns(free_bytes: int) -> None:
    result = only("host.disk", with_place("temporary files", free_bytes=free_bytes))

    assert result.status == "warn"
    assert "temporary files /data" in result.evidence


def test_five_gib_of_room_are_fine() -> None:
    assert only("host.disk", with_place("working folder", free_bytes=5 * GIB)).status == "ok"


def test_room_that_cannot_be_read_is_not_judged() -> None:
    assert look("host.disk", with_place("working folder", free_bytes=None)) == []


# --- host.compile-cache -----------------------------------------------------------------------------------


def test_a_cache_that_cannot_be_written_warns_with_another_place() -> None:
    result = only("host.compile-cache", with_place("compile cache", writable=False))

    assert result.status == "warn"
    assert "/data cannot be written" in result.evidence
    assert result.fix == 'export TORCHINDUCTOR_CACHE_DIR="$HOME/.cache/torchinductor"'


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "lustre"])
def test_a_cache_on_a_network_disk_warns_with_a_local_place(kind: str) -> None:
    result = only("host.compile-cache", with_place("compile cache", filesystem=kind))

    assert result.status == "warn"
    assert f"({kind})" in result.evidence
    assert result.fix.startswith('export TORCHINDUCTOR_CACHE_DIR="/tmp/')


def test_a_cache_on_a_full_disk_warns() -> None:
    result = only("host.compile-cache", with_place("compile cache", free_bytes=100 * MIB))

    assert result.status == "warn"
    assert "only 100 MiB free" in result.evidence


def test_a_cache_with_room_on_a_local_disk_is_fine() -> None:
    result = only("host.compile-cache", with_place("compile cache", free_bytes=512 * MIB))

    assert (result.status, result.evidence) == ("ok", "/data")


def test_a_cache_in_memory_is_said_to_go_with_a_reboot() -> None:
    result = only("host.compile-cache", with_place("compile cache", filesystem="tmpfs"))

    assert result.status == "ok"
    assert "reboot" in result.evidence


def test_a_cache_that_cannot_be_examined_is_unknown() -> None:
    machine = with_place("compile cache", writable=None, free_bytes=None, filesystem="")

    assert only("host.compile-cache", machine).status == "unknown"


def test_nothing_is_said_of_a_host_that_was_not_read() -> None:
    machine = on_unread_host()
    for check in (
        *("host.shared-memory", "host.cpu-limit", "host.cpu-affinity", "host.cpu-governor"),
        *("host.memory-limit", "host.disk", "host.compile-cache"),
    ):
        assert look(check, machine) == []


@pytest.mark.parametrize("driver", ["intel_pstate", "amd-pstate-epp"])
def test_powersave_is_the_usual_setting_of_drivers_that_scale_themselves(driver: str) -> None:
    machine = on_host(cpu_governor="powersave", cpu_frequency_driver=driver)
    assert only("host.cpu-governor", machine).status == "ok"


def test_a_full_shared_memory_warns_although_it_is_large() -> None:
    result = only("host.shared-memory", on_host(shm_total_bytes=64 << 30, shm_free_bytes=1 << 20))
    assert result.status == "warn"
    assert "1 MiB of 64.0 GiB free" in result.evidence


def test_a_machine_whose_memory_is_nearly_gone_warns() -> None:
    result = only("host.memory-limit", on_host(memory_available_bytes=500 << 20))
    assert result.status == "warn"
    assert "500 MiB available" in result.evidence


def test_a_working_folder_that_cannot_be_written_warns() -> None:
    place = Place(
        purpose="working folder", path="/data", free_bytes=1 << 40, total_bytes=1 << 41, writable=False
    )
    result = only("host.disk", on_host(places=(place,)))
    assert result.status == "warn"
    assert "/data cannot be written" in result.evidence
