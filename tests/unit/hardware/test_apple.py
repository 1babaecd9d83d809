"""Apple's device source."""

from types import SimpleNamespace
from typing import Any

import pytest

from flatout.hardware.apple import AppleSource
from flatout.hardware.command import ToolOutput
from tests.fakes.vendor_tools import FakeTools, recorded

GIB = 1 << 30


def source_of(output: str | ToolOutput, **given: Any) -> AppleSource:
    memory = SimpleNamespace(total=18 * GIB, available=7 * GIB, used=9 * GIB)
    tools = FakeTools({("system_profiler",): output})
    return AppleSource(
        tools, **{"platform": "darwin", "memory": lambda: memory, "clock": lambda: 3.0, **given}
    )


def test_reads_an_apple_gpu_with_the_memory_that_it_shares() -> None:
    found = source_of(recorded("system_profiler_m3_pro.json")).discover()

    assert found.problems == ()
    assert found.absent_reason == ""
    (device,) = found.devices
    assert (device.index, device.vendor, device.name) == (0, "apple", "Apple M3 Pro")
    assert device.core_count == 14
    assert device.memory_total_bytes == 18 * GIB
    assert device.memory_source == "system_profiler, shared with the CPU"
    assert device.unified_memory is True
    assert device.runtime_version == "Metal 3"
    assert device.driver_version is None
    assert device.unknown["driver_version"] == "the driver is a part of macOS"


def test_reads_an_older_system_and_leaves_out_what_it_does_not_say() -> None:
    (device,) = source_of(recorded("system_profiler_m1_macos_11.json")).discover().devices

    assert (device.name, device.core_count, device.memory_total_bytes) == ("Apple M1", 8, 8 * GIB)
    assert device.architecture == "apple7"
    assert device.uuid is None
    assert device.unknown["uuid"] == "system_profiler does not report 'platform_UUID'"
    assert device.runtime_version is None


def test_the_identifier_is_stable_and_is_not_the_macs_own() -> None:
    text = recorded("system_profiler_m3_pro.json")
    first = source_of(text).discover().devices[0].uuid
    again = source_of(text).discover().devices[0].uuid
    other = source_of(text.replace("00000000-1111", "00000000-9999")).discover().devices[0].uuid

    assert first == again != other
    assert first is not None
    assert first.startswith("APPLE-")
    assert "1111" not in first
    assert "4444" not in first


def test_an_intel_mac_has_no_apple_gpu() -> None:
    found = source_of(recorded("system_profiler_intel_mac.json")).discover()

    assert found.devices == ()
    assert found.problems == ()
    assert found.absent_reason == (
        "no GPU of this Mac is Apple's (found: Intel UHD Graphics 630, AMD Radeon Pro 5300M)"
    )


def test_asks_nothing_where_there_is_no_macos() -> None:
    tools = FakeTools({("system_profiler",): recorded("system_profiler_m3_pro.json")})
    found = AppleSource(tools, platform="linux").discover()

    assert found.devices == ()
    assert found.problems == ()
    assert found.absent_reason == "this machine does not run macOS"
    assert tools.calls == []


@pytest.mark.parametrize(
    "text",
    [
        recorded("system_profiler_m3_pro.json")[:500],
        "",
        "{}",
        "[]",
        "null",
        '{"SPDisplaysDataType": 3}',
        "[" * 100_000,
    ],
    ids=["truncated", "nothing", "empty object", "list", "null", "number", "nested"],
)
def test_garbage_is_a_problem_with_a_fix(text: str) -> None:
    found = source_of(ToolOutput(text=text)).discover()

    assert found.devices == ()
    assert found.absent_reason == ""
    (problem,) = found.problems
    assert problem.code == "apple.unreadable"
    assert "printed no list of GPUs" in problem.evidence
    assert problem.fix.startswith("system_profiler ")


def test_the_reason_of_a_tool_that_hangs_is_passed_on() -> None:
    late = ToolOutput(text=None, reason="system_profiler gave no answer within 30 s")

    assert source_of(late).discover().problems[0].evidence == late.reason


@pytest.mark.parametrize("size", ["N/A", "", "eighteen GB", "18 GiB"])
def test_a_size_that_is_not_understood_is_absent(size: str) -> None:
    (device,) = source_of(recorded("system_profiler_m3_pro.json").replace("18 GB", size)).discover().devices

    assert device.memory_total_bytes is None
    assert "not a size of memory" in device.unknown["memory_total_bytes"]
    assert device.core_count == 14


def test_a_sample_has_the_machines_memory_and_says_what_macos_hides() -> None:
    source = source_of(recorded("system_profiler_m3_pro.json"))
    (sample,) = source.sample(source.discover().devices)

    assert (sample.state, sample.taken_at_unix_s) == ("up", 3.0)
    assert (sample.memory_used_bytes, sample.memory_free_bytes) == (11 * GIB, 7 * GIB)
    for field in ("kernel_running_share", "power_draw_mw", "temperature_c"):
        assert getattr(sample, field) is None
        assert "only to root" in sample.unknown[field]
    source.close()
    source.close()


def test_memory_that_cannot_be_read_is_absent() -> None:
    def failing() -> Any:
        raise OSError("host_statistics64() failed")

    source = source_of(recorded("system_profiler_m3_pro.json"), memory=failing)
    (sample,) = source.sample(source.discover().devices)

    assert sample.memory_used_bytes is None
    assert sample.memory_free_bytes is None
    assert sample.unknown["memory_used_bytes"] == "host_statistics64() failed"
