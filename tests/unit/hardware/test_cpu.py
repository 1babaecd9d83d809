"""The CPU as a device."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flatout.hardware.command import ToolOutput
from flatout.hardware.cpu import CpuSource
from tests.fakes.vendor_tools import FakeTools

GIB = 1 << 30
CPUINFO = """processor\t: 0
vendor_id\t: AuthenticAMD
model name\t: AMD EPYC 9654 96-Core Processor
cpu MHz\t\t: 2400.000

processor\t: 1
model name\t: AMD EPYC 9654 96-Core Processor
"""


def system(**changed: Any) -> Any:
    """What psutil answers on a server."""
    sensor = SimpleNamespace(label="Tctl", current=61.4, high=None, critical=None)
    answers = {
        "virtual_memory": lambda: SimpleNamespace(
            total=64 * GIB, available=40 * GIB, used=20 * GIB, free=9 * GIB
        ),
        "cpu_count": lambda logical: 192 if logical else 96,
        "cpu_freq": lambda: SimpleNamespace(current=2399.9, min=1500.0, max=3707.8),
        "sensors_temperatures": lambda: {"nvme": [SimpleNamespace(current=88.0)], "k10temp": [sensor]},
    }
    return SimpleNamespace(**{**answers, **changed})


def source_in(folder: Path, psutil: Any = None, **given: Any) -> CpuSource:
    (folder / "cpuinfo").write_text(CPUINFO)
    (folder / "machine-id").write_text("3d1219c7c4c5404aaa1f6d2a48adfda4\n")
    places = {"cpuinfo": folder / "cpuinfo", "machine_ids": [folder / "nowhere", folder / "machine-id"]}
    return CpuSource(FakeTools({}), system=psutil or system(), **{**places, "clock": lambda: 5.0, **given})


def test_there_is_exactly_one_device(tmp_path: Path) -> None:
    found = source_in(tmp_path).discover()

    assert found.problems == ()
    assert found.absent_reason == ""
    (device,) = found.devices
    assert (device.index, device.vendor, device.name) == (0, "cpu", "AMD EPYC 9654 96-Core Processor")
    assert device.memory_total_bytes == 64 * GIB
    assert device.memory_source == "psutil"
    assert device.core_count == 96
    assert device.clock_compute_max_hz == 3_707_800_000
    assert device.architecture


def test_a_sample_has_memory_clock_and_temperature(tmp_path: Path) -> None:
    source = source_in(tmp_path)
    (sample,) = source.sample(source.discover().devices)

    assert (sample.state, sample.taken_at_unix_s) == ("up", 5.0)
    assert (sample.memory_used_bytes, sample.memory_free_bytes) == (24 * GIB, 40 * GIB)
    assert sample.clock_compute_hz == 2_399_900_000
    assert sample.temperature_c == 61
    assert sample.kernel_running_share is None
    source.close()
    source.close()


def test_the_identifier_is_stable_and_does_not_give_away_the_machine(tmp_path: Path) -> None:
    first = source_in(tmp_path).discover().devices[0].uuid
    again = source_in(tmp_path).discover().devices[0].uuid
    smaller = source_in(tmp_path, system(cpu_count=lambda logical: 48)).discover().devices[0].uuid
    elsewhere = source_in(tmp_path, machine_ids=[]).discover().devices[0].uuid

    assert first is not None
    assert first.startswith("CPU-")
    assert first == again
    assert len({first, smaller, elsewhere}) == 3
    assert "3d1219c7" not in first


def test_what_the_system_does_not_tell_is_absent_with_a_reason(tmp_path: Path) -> None:
    bare = system(
        cpu_count=lambda logical: None,
        cpu_freq=lambda: None,
        sensors_temperatures=dict,
    )
    source = source_in(tmp_path, bare)
    (device,) = source.discover().devices
    (sample,) = source.sample([device])

    assert device.core_count is None
    assert device.unknown["core_count"] == "the system does not say how many physical cores there are"
    assert device.clock_compute_max_hz is None
    assert device.unknown["clock_compute_max_hz"]
    assert sample.clock_compute_hz is None
    assert sample.unknown["clock_compute_hz"]
    assert sample.temperature_c is None
    assert sample.unknown["temperature_c"] == "the system has no temperature sensor of the processor"
    assert device.uuid is not None


@pytest.mark.parametrize("name", ["cpu_freq", "sensors_temperatures", "virtual_memory"])
def test_a_reading_that_psutil_lacks_or_fails_at_leaves_the_others(tmp_path: Path, name: str) -> None:
    def failing() -> Any:
        raise FileNotFoundError(2, "No such file or directory", "/sys/devices/system/cpu")

    fields = {
        "cpu_freq": "clock_compute_hz",
        "sensors_temperatures": "temperature_c",
        "virtual_memory": "memory_used_bytes",
    }
    failed = source_in(tmp_path, system(**{name: failing}))
    sample = failed.sample(failed.discover().devices)[0]
    for reading, field in fields.items():
        assert (getattr(sample, field) is None) == (reading == name)
    assert "No such file" in sample.unknown[fields[name]]


def test_a_platform_without_sensors_is_survived(tmp_path: Path) -> None:
    mac = system()
    del mac.sensors_temperatures
    source = source_in(tmp_path, mac)

    assert "sensors_temperatures" in source.sample(source.discover().devices)[0].unknown["temperature_c"]


@pytest.mark.parametrize("mhz", [0.0, 3.2, 1e9, float("inf")])
def test_an_impossible_clock_is_absent(tmp_path: Path, mhz: float) -> None:
    odd = system(cpu_freq=lambda: SimpleNamespace(current=mhz, min=mhz, max=mhz))
    source = source_in(tmp_path, odd)
    (device,) = source.discover().devices
    (sample,) = source.sample([device])

    assert device.clock_compute_max_hz is None
    assert sample.clock_compute_hz is None
    assert sample.unknown["clock_compute_hz"]


def test_a_mac_names_its_processor_through_sysctl(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    tools = FakeTools({("sysctl",): "Apple M3 Pro\n"})
    source = CpuSource(tools, system=system(), cpuinfo=nowhere, machine_ids=[], platform_name="darwin")

    assert source.discover().devices[0].name == "Apple M3 Pro"


def test_there_is_a_name_even_where_nothing_gives_one(tmp_path: Path) -> None:
    late = ToolOutput(text=None, reason="sysctl gave no answer within 5 s")
    tools = FakeTools({("sysctl",): late})
    nowhere = tmp_path / "nowhere"
    source = CpuSource(tools, system=system(), cpuinfo=nowhere, machine_ids=[], platform_name="darwin")

    assert source.discover().devices[0].name


def test_this_machine_has_a_cpu_with_memory() -> None:
    source = CpuSource()
    (device,) = source.discover().devices
    (sample,) = source.sample([device])

    assert device.memory_total_bytes is not None
    assert device.memory_total_bytes > 0
    assert sample.memory_used_bytes is not None
    assert sample.memory_free_bytes is not None
    assert 0 < sample.memory_used_bytes < device.memory_total_bytes
    assert sample.memory_used_bytes + sample.memory_free_bytes == device.memory_total_bytes
