"""What drivers do to us: each fault is planted in the fake NVML and seen to fire."""

import ctypes
import os
import threading
import time
import warnings

import pytest

from flatout.hardware.nvidia.session import NvmlSession
from flatout.hardware.nvidia.source import NvidiaSource
from flatout.hardware.nvidia.xid import _address
from flatout.hardware.torch_devices import with_torch_memory
from flatout.records.device import Device
from flatout.records.machine import ComputeProof, Framework
from tests.fakes import nvml
from tests.fakes.nvml import FakeNvml


class Clock:
    """A monotonic clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def started(fake: FakeNvml, **settings: float) -> tuple[NvidiaSource, tuple[Device, ...], Clock]:
    """A source that has seen every GPU well once."""
    clock = Clock()
    source = NvidiaSource(session=NvmlSession(fake, monotonic=clock), **settings)  # type: ignore[arg-type]
    devices = source.discover().devices
    assert all(sample.state == "up" for sample in source.sample(devices))
    return source, devices, clock


# 1 -----------------------------------------------------------------------------------------------------


def test_an_absent_library_is_no_gpu_and_no_problem() -> None:
    fake = FakeNvml()
    fake.fail("nvmlInit", nvml.LIBRARY_NOT_FOUND)
    found = NvidiaSource(fake).discover()
    assert fake.fired["nvmlInit 12"] == 1
    assert found.devices == ()
    assert found.problems == ()
    assert "not on this machine" in found.absent_reason


# 2 -----------------------------------------------------------------------------------------------------


def test_a_driver_of_another_version_is_named_with_the_way_to_reload_it() -> None:
    fake = FakeNvml()
    fake.fail("nvmlInit", nvml.VERSION_MISMATCH)
    [problem] = NvidiaSource(fake).discover().problems
    assert fake.fired["nvmlInit 18"] == 1
    assert problem.code == "nvidia.version_mismatch"
    assert "modprobe nvidia" in problem.fix
    assert "reboot" in problem.fix


# 3 -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [nvml.NO_PERMISSION, nvml.UNKNOWN])
def test_a_session_that_breaks_gives_stale_samples_and_is_started_again_with_back_off(code: int) -> None:
    fake = FakeNvml(gpus=2)
    source, devices, clock = started(fake)
    good = source.sample(devices)
    fake.lose_all(code)
    fake.fail("nvmlInit", code)

    stale = source.sample(devices)
    assert fake.fired[f"nvmlDeviceGetMemoryInfo {code}"] == 2
    assert fake.calls["nvmlShutdown"] == 1  # or the next start would get the same broken session
    assert [sample.state for sample in stale] == ["stale", "stale"]
    assert stale[0].taken_at_unix_s == good[0].taken_at_unix_s  # the old value keeps its own time
    assert stale[0].memory_free_bytes == good[0].memory_free_bytes
    assert stale[0].state_reason

    tries = fake.calls["nvmlInit"]
    source.sample(devices)
    assert fake.calls["nvmlInit"] == tries  # not again at once
    waits = []
    for _ in range(4):  # each failure doubles the pause
        before = clock.now
        while fake.calls["nvmlInit"] == tries:
            clock.now += 0.5
            assert [sample.state for sample in source.sample(devices)] == ["stale", "stale"]
        tries = fake.calls["nvmlInit"]
        waits.append(clock.now - before)
    assert waits == sorted(waits)
    assert waits[-1] >= 4 * waits[0]

    fake.heal_all()
    clock.now += 120
    assert [sample.state for sample in source.sample(devices)] == ["up", "up"]


# 4 -----------------------------------------------------------------------------------------------------


def test_one_lost_gpu_is_down_and_the_others_are_still_read() -> None:
    fake = FakeNvml(gpus=3)
    source, devices, _ = started(fake)
    fake.lose(1)
    samples = source.sample(devices)
    assert fake.fired["nvmlDeviceGetMemoryInfo 15"] == 1
    assert [sample.state for sample in samples] == ["up", "down", "up"]
    assert samples[1].memory_used_bytes is None
    assert "lost" in samples[1].state_reason.lower()
    again = source.discover()
    assert [device.uuid for device in again.devices] == [fake.uuid(0), fake.uuid(1), fake.uuid(2)]
    assert again.problems[0].code == "nvidia.gpu_lost"


def test_a_gpu_that_is_lost_before_we_start_is_shown_without_an_identity() -> None:
    fake = FakeNvml(gpus=2)
    fake.lose(0)
    source = NvidiaSource(fake)
    found = source.discover()
    assert fake.fired["nvmlDeviceGetHandleByIndex 15"] == 1
    assert [device.index for device in found.devices] == [0, 1]
    assert found.devices[0].uuid is None
    assert [sample.state for sample in source.sample(found.devices)] == ["down", "up"]


def test_one_gpu_with_an_unknown_error_does_not_end_the_session_of_the_others() -> None:
    fake = FakeNvml(gpus=2)
    source, devices, _ = started(fake)
    fake.lose(1, nvml.UNKNOWN)
    for _ in range(3):
        assert [sample.state for sample in source.sample(devices)] == ["up", "stale"]
    assert fake.calls["nvmlInit"] == 1


# 5 -----------------------------------------------------------------------------------------------------

_OPTIONAL = {
    "nvmlDeviceGetPowerUsage": "power_draw_mw",
    "nvmlDeviceGetTotalEnergyConsumption": "energy_total_mj",
    "nvmlDeviceGetTemperature": "temperature_c",
    "nvmlDeviceGetEccMode": "ecc_enabled",
    "nvmlDeviceGetCurrPcieLinkWidth": "pcie_width",
    "nvmlDeviceGetPersistenceMode": "persistence_mode",
    "nvmlDeviceGetUtilizationRates": "kernel_running_share",
    "nvmlDeviceGetComputeRunningProcesses_v3": "processes",
    "nvmlGpmQueryDeviceSupport": "sm_active_share",
}


@pytest.mark.parametrize(("function", "field"), _OPTIONAL.items())
def test_an_unsupported_field_is_absent_and_never_zero(function: str, field: str) -> None:
    fake = FakeNvml()
    fake.fail(function, nvml.NOT_SUPPORTED)
    source = NvidiaSource(fake)
    devices = source.discover().devices
    source.sample(devices)
    [sample] = source.sample(devices)
    assert fake.fired[f"{function} 3"] >= 1
    assert sample.state == "up"
    assert getattr(sample, field) is None
    assert sample.unknown[field]


# 6 -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sentinel", [0xFFFFFFFF, 2**63 - 1, 2**64 - 1, 2**63])
def test_placeholders_are_absent(sentinel: int) -> None:
    fake = FakeNvml()
    for function in ("PowerUsage", "TotalEnergyConsumption", "EnforcedPowerLimit", "CurrPcieLinkWidth"):
        fake.answer(f"nvmlDeviceGet{function}", sentinel)
    source = NvidiaSource(fake)
    [sample] = source.sample(source.discover().devices)
    for field in ("power_draw_mw", "energy_total_mj", "power_limit_mw", "pcie_width"):
        assert getattr(sample, field) is None
        assert "placeholder" in sample.unknown[field]


def test_placeholders_are_absent_where_units_are_converted_too() -> None:
    fake = FakeNvml()
    for function in ("ClockInfo", "FanSpeed", "PcieThroughput", "MaxClockInfo"):
        fake.answer(f"nvmlDeviceGet{function}", 0xFFFFFFFF)
    fake.answer("nvmlDeviceGetTemperatureThreshold", 0)
    source = NvidiaSource(fake)
    [device] = source.discover().devices
    [sample] = source.sample([device])
    for field in ("clock_compute_hz", "clock_memory_hz", "fan_speed_share", "pcie_sent_bytes_per_s"):
        assert getattr(sample, field) is None, field
    assert device.clock_compute_max_hz is None
    assert device.temperature_slowdown_c is None


def test_an_impossible_temperature_is_absent() -> None:
    fake = FakeNvml()
    fake.answer("nvmlDeviceGetTemperature", 511)
    source = NvidiaSource(fake)
    [sample] = source.sample(source.discover().devices)
    assert sample.temperature_c is None
    assert "511" in sample.unknown["temperature_c"]


# 7 -----------------------------------------------------------------------------------------------------


def test_an_old_driver_gets_the_older_call() -> None:
    fake = FakeNvml()
    fake.fail("nvmlDeviceGetCurrentClocksEventReasons", nvml.FUNCTION_NOT_FOUND)
    fake.answer("nvmlDeviceGetCurrentClocksThrottleReasons", 0x4)
    fake.fail("nvmlDeviceGetEnforcedPowerLimit", nvml.FUNCTION_NOT_FOUND)
    fake.fail("nvmlDeviceGetComputeRunningProcesses_v3", nvml.FUNCTION_NOT_FOUND)
    fake.answer("nvmlDeviceGetComputeRunningProcesses_v2", [nvml.SimpleNamespace(pid=1, usedGpuMemory=5)])
    source = NvidiaSource(fake)
    [sample] = source.sample(source.discover().devices)
    assert fake.fired["nvmlDeviceGetCurrentClocksEventReasons 13"] == 1
    assert sample.throttle_reasons == ("power_cap",)
    assert sample.power_limit_mw == 700_000
    assert sample.processes is not None
    assert [process.pid for process in sample.processes] == [1]


def test_a_function_that_neither_driver_nor_binding_has_leaves_the_field_absent() -> None:
    fake = FakeNvml()
    fake.fail("nvmlDeviceGetTotalEnergyConsumption", nvml.FUNCTION_NOT_FOUND)
    fake.removed.add("nvmlDeviceGetNumGpuCores")
    source = NvidiaSource(fake)
    [device] = source.discover().devices
    [sample] = source.sample([device])
    assert "too old" in sample.unknown["energy_total_mj"]
    assert device.core_count is None
    assert "too old" in device.unknown["core_count"]


# 8 -----------------------------------------------------------------------------------------------------


def test_mig_instances_have_their_own_identity_and_the_parent_no_utilization() -> None:
    fake = FakeNvml(gpus=2)
    fake.mig = {0: 2}
    source = NvidiaSource(fake)
    devices = source.discover().devices
    assert [device.uuid for device in devices] == [
        fake.uuid(0),
        fake.uuid(0, 0),
        fake.uuid(0, 1),
        fake.uuid(1),
    ]
    parent, instance = devices[0], devices[1]
    assert parent.mig_enabled is True
    assert instance.parent_uuid == parent.uuid
    assert (instance.index, instance.mig_slot) == (parent.index, "0")
    assert instance.memory_total_bytes == 17 << 30
    source.sample(devices)
    samples = source.sample(devices)
    assert samples[0].kernel_running_share is None
    assert samples[0].tensor_active_share is None
    assert "MIG" in samples[0].unknown["kernel_running_share"]
    assert samples[1].memory_used_bytes == 1 << 30
    assert samples[1].power_draw_mw is None
    assert samples[3].kernel_running_share == 0.0


def test_the_whole_card_of_a_mig_gpu_is_not_lost_because_only_root_sees_its_memory() -> None:
    fake = FakeNvml()
    fake.mig = {0: 1}
    source = NvidiaSource(fake)
    devices = source.discover().devices
    fake.fail("nvmlDeviceGetMemoryInfo", nvml.NO_PERMISSION, gpu=0)
    parent, _instance = source.sample(devices)
    assert fake.fired["nvmlDeviceGetMemoryInfo 4"] >= 1
    assert parent.state == "up"
    assert "root" in parent.unknown["memory_used_bytes"]


# 9 -----------------------------------------------------------------------------------------------------


def test_unified_memory_takes_torchs_figure_and_says_so() -> None:
    fake = FakeNvml()
    fake.fail("nvmlDeviceGetMemoryInfo", nvml.NOT_SUPPORTED)
    source = NvidiaSource(fake)
    [device] = source.discover().devices
    assert fake.fired["nvmlDeviceGetMemoryInfo 3"] == 1
    assert device.unified_memory
    assert device.memory_total_bytes is None
    [sample] = source.sample([device])
    assert sample.state == "up"
    assert sample.memory_used_bytes is None
    proof = ComputeProof(device="cuda:0", uuid=fake.uuid(0)[4:], memory_total_bytes=128 << 30, computed=True)
    torch = Framework(name="torch", installed=True, proofs=(proof,))
    labelled = with_torch_memory(device, torch)
    assert labelled.memory_total_bytes == 128 << 30
    assert "torch" in labelled.memory_source
    assert "shared" in labelled.memory_source
    assert "memory_total_bytes" not in labelled.unknown


# 11 ----------------------------------------------------------------------------------------------------


def test_a_foreign_or_absurd_pid_is_an_unknown_process() -> None:
    fake = FakeNvml()
    listed = [nvml.SimpleNamespace(pid=pid, usedGpuMemory=1 << 30) for pid in (os.getppid(), 4294967295, 0)]
    fake.answer("nvmlDeviceGetComputeRunningProcesses_v3", listed)
    source = NvidiaSource(fake)
    [sample] = source.sample(source.discover().devices)
    assert sample.processes is not None
    assert len(sample.processes) == 3
    for process in sample.processes:  # our parent exists, but holds no GPU: the PID is another namespace's
        assert process.name is None
        assert process.user is None
        assert process.unknown["name"]
        assert process.memory_bytes == 1 << 30


def test_a_process_whose_memory_is_not_told_is_listed_without_a_figure() -> None:
    fake = FakeNvml()
    fake.answer(
        "nvmlDeviceGetComputeRunningProcesses_v3", [nvml.SimpleNamespace(pid=os.getpid(), usedGpuMemory=None)]
    )
    source = NvidiaSource(fake)
    [sample] = source.sample(source.discover().devices)
    assert sample.processes is not None
    assert sample.processes[0].memory_bytes is None
    assert sample.processes[0].unknown["memory_bytes"]


# 12 ----------------------------------------------------------------------------------------------------


def test_a_blocked_call_makes_its_own_gpu_stale_and_the_others_stay_fresh() -> None:
    fake = FakeNvml(gpus=2)
    source, devices, _ = started(fake, call_timeout_s=1.5)
    release = fake.block("nvmlDeviceGetTemperature", gpu=0)
    before = time.time()
    samples = source.sample(devices)
    assert fake.fired["block nvmlDeviceGetTemperature"] == 1
    assert [sample.state for sample in samples] == ["stale", "up"]
    assert samples[0].taken_at_unix_s < before <= samples[1].taken_at_unix_s
    # While it hangs, nobody waits for it again and no second call piles up behind it.
    assert [sample.state for sample in source.sample(devices)] == ["stale", "up"]
    assert "blocked" in source.sample(devices)[0].state_reason
    assert fake.fired["block nvmlDeviceGetTemperature"] == 1
    release.set()
    deadline = time.monotonic() + 60
    while source.sample(devices)[0].state != "up":
        assert time.monotonic() < deadline


def test_a_gpu_that_takes_long_to_wake_up_is_waited_for() -> None:
    fake = FakeNvml(gpus=2)
    release = fake.block("nvmlDeviceGetHandleByIndex")
    threading.Timer(1.5, release.set).start()
    found = NvidiaSource(fake, call_timeout_s=1.0).discover()
    assert fake.fired["block nvmlDeviceGetHandleByIndex"] == 2  # both are woken at once
    assert [device.uuid for device in found.devices] == [fake.uuid(0), fake.uuid(1)]
    assert found.problems == ()


def test_a_gpu_that_never_wakes_up_is_blocked_and_not_called_lost() -> None:
    fake = FakeNvml()
    release = fake.block("nvmlDeviceGetHandleByIndex")
    found = NvidiaSource(fake, first_contact_s=0.2).discover()
    release.set()
    assert found.problems[0].code == "nvidia.blocked"
    assert "reset" not in found.problems[0].fix


def test_a_blocked_start_is_a_problem_and_not_a_hang() -> None:
    fake = FakeNvml()
    release = fake.block("nvmlInit")
    found = NvidiaSource(session=NvmlSession(fake, init_timeout_s=0.2)).discover()
    release.set()
    assert fake.fired["block nvmlInit"] == 1
    assert found.devices == ()
    assert found.problems[0].code == "nvidia.blocked"


# 13 ----------------------------------------------------------------------------------------------------


def test_the_xid_count_survives_a_driver_reload() -> None:
    fake = FakeNvml(gpus=2)
    source, devices, clock = started(fake)
    fake.xids = [(1, 79), (1, 48)]
    assert [(s.xid_count, s.xid_last) for s in source.sample(devices)] == [(0, None), (2, 48)]
    fake.lose_all(nvml.UNKNOWN)
    source.sample(devices)
    fake.heal_all()
    clock.now += 120
    fake.xids = [(1, 31)]
    samples = source.sample(devices)
    assert fake.calls["nvmlInit"] == 2
    assert [(s.state, s.xid_count) for s in samples] == [("up", 0), ("up", 3)]


def test_a_lost_gpu_does_not_stop_the_count_of_the_others() -> None:
    fake = FakeNvml(gpus=2)
    source, devices, clock = started(fake)
    fake.lose_all(nvml.UNKNOWN)
    source.sample(devices)
    fake.heal_all()
    fake.lose(0)
    clock.now += 120
    source.sample(devices)
    fake.xids = [(1, 48)]
    assert [sample.xid_count for sample in source.sample(devices)] == [0, 1]


def test_a_gpu_that_falls_off_its_bus_has_its_last_xid_counted_and_those_that_wait_behind_it() -> None:
    fake = FakeNvml(gpus=2)
    source, devices, _ = started(fake)
    source.sample(devices)
    fake.lose(0)  # from now on it does not even say its name
    fake.lose(7)  # and one that nobody knows
    fake.xids = [(0, 79), (7, 31), (1, 48)]
    samples = source.sample(devices)
    assert [(s.state, s.xid_count, s.xid_last) for s in samples] == [("down", 1, 79), ("up", 1, 48)]
    assert not fake.calls["nvmlEventSetFree"]


def test_two_pointers_to_one_device_are_one_handle() -> None:
    device = ctypes.c_int()
    first, second = (ctypes.pointer(device) for _ in range(2))
    assert first != second
    assert _address(first) == _address(second) == ctypes.addressof(device)


def test_samples_of_gpm_are_given_back_before_their_session_ends() -> None:
    fake = FakeNvml(gpus=1)
    source, devices, _ = started(fake)
    assert fake.live_samples
    fake.lose_all(nvml.UNKNOWN)
    source.sample(devices)
    assert (fake.calls["nvmlShutdown"], fake.live_samples) == (1, 0)


def test_the_xid_count_is_unknown_where_events_cannot_be_waited_for() -> None:
    fake = FakeNvml()
    fake.fail("nvmlEventSetWait_v2", nvml.NOT_SUPPORTED)
    source = NvidiaSource(fake)
    [sample] = source.sample(source.discover().devices)
    assert fake.fired["nvmlEventSetWait_v2 3"] == 1
    assert sample.xid_count is None
    assert fake.calls["nvmlEventSetFree"] == 1


def test_the_xid_count_is_unknown_where_events_are_not_supported() -> None:
    fake = FakeNvml()
    fake.fail("nvmlEventSetCreate", nvml.NOT_SUPPORTED)
    source = NvidiaSource(fake)
    [sample] = source.sample(source.discover().devices)
    assert fake.fired["nvmlEventSetCreate 3"] == 1
    assert sample.state == "up"
    assert sample.xid_count is None


# 14 ----------------------------------------------------------------------------------------------------


def test_a_forked_child_starts_its_own_session() -> None:
    fake = FakeNvml()
    source, devices, _ = started(fake)
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks beside threads
        child = os.fork()
    if child == 0:  # pragma: no cover - another process
        [sample] = source.sample(devices)
        own = fake.init_pids[-1] == os.getpid()
        os.write(writer, f"{sample.state} {own} {len(fake.init_pids)}".encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    assert said == "up True 2"
    assert source.sample(devices)[0].state == "up"
    assert fake.init_pids == [os.getpid()]
