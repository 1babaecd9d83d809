"""NVIDIA's source on a healthy machine, replayed from a recording of a real H200."""

import dataclasses

import pytest

from flatout.hardware.nvidia.sampling import SELDOM
from flatout.hardware.nvidia.source import NvidiaSource
from flatout.hardware.nvidia.throttle import decode_reasons
from tests.fakes.nvml import FakeNvml


@pytest.fixture
def fake() -> FakeNvml:
    return FakeNvml(gpus=2)


def test_identity_comes_from_nvml_with_units_in_bytes_hertz_and_milliwatts(fake: FakeNvml) -> None:
    first, second = NvidiaSource(fake).discover().devices
    assert (first.index, second.index) == (0, 1)
    assert first.uuid == fake.uuid(0)
    assert first.uuid != second.uuid
    assert first.name == "NVIDIA H200"
    assert first.memory_total_bytes == 150754820096
    assert first.compute_capability == "9.0"
    assert first.architecture == "hopper"
    assert first.driver_version == "580.159.04"
    assert first.runtime_version == "CUDA 13.0"
    assert first.pcie_generation_max == 5
    assert first.pcie_width_max == 16
    assert first.clock_compute_max_hz == 1_980_000_000
    assert first.power_limit_default_mw == 700_000
    assert first.power_limit_min_mw == 200_000
    assert first.temperature_slowdown_c == 89
    assert first.temperature_shutdown_c == 95
    assert first.mig_enabled is False


def test_a_sample_reads_memory_clocks_power_links_and_errors(fake: FakeNvml) -> None:
    source = NvidiaSource(fake)
    sample = source.sample(source.discover().devices)[0]
    assert sample.state == "up"
    assert sample.memory_used_bytes == 0  # the driver's own reserve is not "used"
    assert sample.memory_free_bytes == 150109880320
    assert sample.kernel_running_share == 0.0
    assert sample.clock_compute_hz == 1_980_000_000
    assert sample.power_draw_mw == 125_048
    assert sample.temperature_c == 43
    assert sample.temperature_memory_c == 43
    assert sample.throttle_reasons == ()
    assert (sample.pcie_generation, sample.pcie_width) == (5, 16)
    assert sample.ecc_uncorrected_since_boot == 0
    assert sample.memory_repair_pending is False
    assert sample.persistence_mode is True
    assert sample.compute_mode == "default"
    assert sample.processes == ()
    assert (sample.xid_count, sample.xid_last) == (0, None)


def test_every_unknown_field_has_a_reason(fake: FakeNvml) -> None:
    source = NvidiaSource(fake)
    devices = source.discover().devices
    for record in (*devices, *source.sample(devices)):
        for field in dataclasses.fields(record):
            if getattr(record, field.name) is None:
                assert record.unknown[field.name]
            else:
                assert field.name not in record.unknown


def test_tensor_activity_needs_two_samples_and_is_a_share(fake: FakeNvml) -> None:
    source = NvidiaSource(fake)
    devices = source.discover().devices
    first = source.sample(devices)[0]
    assert first.tensor_active_share is None
    assert "first" in first.unknown["tensor_active_share"]
    second = source.sample(devices)[0]
    assert second.tensor_active_share == pytest.approx(0.897, abs=0.001)
    assert second.sm_active_share == pytest.approx(0.954, abs=0.001)
    assert second.memory_bandwidth_share == pytest.approx(0.161, abs=0.001)
    assert (
        second.memory_bus_active_share == 0.0
    )  # another quantity: the share of time in which the bus worked
    assert "gpm" in second.activity_source


def test_brief_samples_compare_gpm_no_more_often_than_it_tells_something_new(fake: FakeNvml) -> None:
    source = NvidiaSource(fake)
    devices = source.discover().devices[:1]
    for _ in range(2):
        source.sample(devices)
    compared = fake.calls["nvmlGpmMetricsGet"]
    [brief] = source.sample(devices, thoroughly=False)
    assert brief.tensor_active_share == pytest.approx(0.897, abs=0.001)
    assert fake.calls["nvmlGpmMetricsGet"] == compared
    source.sample(devices)
    assert fake.calls["nvmlGpmMetricsGet"] == compared + 1


def test_gpm_samples_are_freed(fake: FakeNvml) -> None:
    source = NvidiaSource(fake)
    devices = source.discover().devices
    for _ in range(20):
        source.sample(devices)
    assert fake.live_samples == len(devices)
    source.close()
    assert fake.live_samples == 0


def test_nvlinks_are_listed_with_their_state(fake: FakeNvml) -> None:
    fake.answer("nvmlDeviceGetNvLinkState", 1)
    source = NvidiaSource(fake)
    sample = source.sample(source.discover().devices)[0]
    assert sample.gpu_links is not None
    assert len(sample.gpu_links) == 36
    assert all(link.active for link in sample.gpu_links)


def test_retired_pages_are_read_on_gpus_without_a_row_remapper(fake: FakeNvml) -> None:
    fake.fail("nvmlDeviceGetRemappedRows", 3)
    fake.answer("nvmlDeviceGetRetiredPages", [11, 12])
    fake.answer("nvmlDeviceGetRetiredPagesPendingStatus", 1)
    source = NvidiaSource(fake)
    sample = source.sample(source.discover().devices)[0]
    assert sample.memory_rows_remapped == 4  # two of each cause
    assert sample.memory_repair_pending is True
    assert sample.memory_repair_failed is None


def test_throttle_reasons_are_decoded_and_strange_bits_keep_their_number() -> None:
    assert decode_reasons(0) == ()
    assert decode_reasons(0x4 | 0x40) == ("power_cap", "thermal_hardware")
    assert decode_reasons(0x1000 | 0x1) == ("idle", "other_0x1000")


def test_close_is_safe_to_call_twice(fake: FakeNvml) -> None:
    source = NvidiaSource(fake)
    source.discover()
    source.close()
    source.close()
    assert fake.calls["nvmlShutdown"] == 1


def test_brief_samples_leave_out_what_is_dear_and_tell_the_last_of_it() -> None:
    nvml = FakeNvml()
    nvml.hold((1 << 21, 1 << 30))
    source = NvidiaSource(nvml)
    devices = source.discover().devices
    thorough = source.sample(devices)[0]
    before = dict(nvml.calls)
    nvml.answer("nvmlDeviceGetPowerUsage", 654_321)
    brief = source.sample(devices, thoroughly=False)[0]
    dear = (
        "PcieThroughput",
        "RunningProcesses",
        "ProcessUtilization",
        "Ecc",
        "NvLink",
        "RemappedRows",
        "EventSet",
    )
    asked = {name for name, count in nvml.calls.items() if count > before.get(name, 0)}
    assert not [name for name in asked if any(word in name for word in dear)]
    assert brief.power_draw_mw == 654_321
    for field in SELDOM:
        assert getattr(brief, field) == getattr(thorough, field), field
        assert brief.unknown.get(field) == thorough.unknown.get(field), field


def test_the_counter_of_energy_is_read_now_and_then() -> None:
    nvml, clock = FakeNvml(), [1000.0]
    source = NvidiaSource(nvml, energy_every_s=30.0, now_unix_s=lambda: clock[0])
    devices = source.discover().devices
    read = []
    for at_s in (1000.0, 1010.0, 1029.0, 1031.0, 1035.0, 900.0):
        clock[0] = at_s
        nvml.answer("nvmlDeviceGetTotalEnergyConsumption", int(at_s))
        read.append(source.sample(devices)[0].energy_total_mj)
        source.sample(devices, thoroughly=False)
    # A clock that was put back is no reason to wait.
    assert read == [1000, 1000, 1000, 1031, 1031, 900]
    assert nvml.calls["nvmlDeviceGetTotalEnergyConsumption"] == 3


def test_a_brief_sample_without_a_thorough_one_is_thorough() -> None:
    source = NvidiaSource(FakeNvml())
    sample = source.sample(source.discover().devices, thoroughly=False)[0]
    assert sample.pcie_width is not None
    assert sample.processes is not None


def test_after_a_loss_nothing_is_carried_over_from_before() -> None:
    nvml = FakeNvml()
    source = NvidiaSource(nvml)
    devices = source.discover().devices
    source.sample(devices)
    nvml.lose(0)
    assert source.sample(devices, thoroughly=False)[0].state == "down"
    nvml.heal_all()
    nvml.answer("nvmlDeviceGetCurrPcieLinkWidth", 1)
    assert source.sample(devices, thoroughly=False)[0].pcie_width == 1


def test_activity_is_asked_for_once_a_sample() -> None:
    nvml = FakeNvml()
    source = NvidiaSource(nvml)
    source.sample(source.discover().devices)
    assert nvml.calls["nvmlDeviceGetUtilizationRates"] == 1
