"""Intel's device source, through xpu-smi and through sysfs."""

from pathlib import Path

import pytest

from flatout.hardware.command import ToolOutput
from flatout.hardware.intel import IntelSource
from tests.fakes.vendor_tools import FakeTools, recorded

XPU_SMI: dict[tuple[str, ...], str | ToolOutput] = {
    ("discovery", "-d", "0"): recorded("xpu_smi_discovery_0.json"),
    ("discovery", "-d", "1"): recorded("xpu_smi_discovery_1_placeholders.json"),
    ("discovery",): recorded("xpu_smi_discovery.json"),
    ("stats", "0"): recorded("xpu_smi_stats_v1.json"),
    ("stats", "1"): recorded("xpu_smi_stats_v1_two_tiles.json"),
}
NO_TOOLS = FakeTools({})


def source_with(tmp_path: Path, **changed: str | ToolOutput) -> IntelSource:
    """xpu-smi as recorded, with the output of one command changed; sysfs is empty."""
    words = {"listing": ("discovery",), "detail_1": ("discovery", "-d", "1"), "stats_0": ("stats", "0")}
    outputs = dict(XPU_SMI)
    outputs.update({words[name]: output for name, output in changed.items()})
    return IntelSource(FakeTools(outputs), tmp_path, clock=lambda: 7.0)


def make_card(root: Path, number: int, address: str, driver: str, files: dict[str, str]) -> None:
    """A card as the kernel shows it: `class/drm/cardN/device` leads to the PCI device, that to its driver."""
    device = root / "devices/pci0000:00" / address
    (root / "bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
    device.mkdir(parents=True)
    (device / "driver").symlink_to(root / "bus/pci/drivers" / driver)
    card = root / f"class/drm/card{number}"
    card.mkdir(parents=True)
    (card / "device").symlink_to(device)
    for name, text in {"device/vendor": "0x8086\n", "device/device": "0x56a0\n", **files}.items():
        (card / name).parent.mkdir(parents=True, exist_ok=True)
        (card / name).write_text(text)


ARC_I915 = {
    "lmem_total_bytes": "17095983104\n",
    "lmem_avail_bytes": "9000000000\n",
    "gt_act_freq_mhz": "0\n",
    "gt_cur_freq_mhz": "2400\n",
    "gt_RP0_freq_mhz": "2400\n",
    "device/hwmon/hwmon4/energy1_input": "5000000000\n",
    "device/hwmon/hwmon4/power1_max": "190000000\n",
    "device/hwmon/hwmon4/power1_rated_max": "190000000\n",
    "device/hwmon/hwmon4/temp1_input": "51000\n",
}


# xpu-smi


def test_reads_what_a_gpu_is_through_xpu_smi(tmp_path: Path) -> None:
    found = source_with(tmp_path).discover()

    assert found.problems == ()
    assert found.absent_reason == ""
    device = found.devices[0]
    assert (device.index, device.vendor, device.name) == (0, "intel", "Intel(R) Arc(TM) Pro B60 Graphics")
    assert device.uuid == "00000000-0000-0018-0000-0000e2118086"
    assert device.memory_total_bytes == 25_669_140_480
    assert device.memory_source == "xpu-smi"
    assert device.driver_version == "7B7A46009E666C4D10E1134"
    assert device.core_count == 160
    assert device.pci_bus_id == "0000:18:00.0"
    assert (device.pcie_generation_max, device.pcie_width_max) == (5, 8)
    assert device.clock_compute_max_hz == 2_400_000_000


def test_reads_the_clock_under_the_name_that_version_2_gives_it(tmp_path: Path) -> None:
    text = recorded("xpu_smi_discovery_0.json").replace(
        '"core_clock_rate_mhz": "2400"', '"core_clock_rate": "2350 MHz"'
    )
    device = (
        source_with(tmp_path, detail_1=text.replace('"device_id": 0', '"device_id": 1')).discover().devices[1]
    )

    assert device.clock_compute_max_hz == 2_350_000_000


def test_placeholders_of_xpu_smi_are_absent_and_say_why(tmp_path: Path) -> None:
    device = source_with(tmp_path).discover().devices[1]

    assert device.uuid == "00000000-0000-001c-0000-0000e2118086"
    for field in ("memory_total_bytes", "pcie_generation_max", "pcie_width_max"):
        assert getattr(device, field) is None
        assert "impossible value" in device.unknown[field]
    for field in ("driver_version", "clock_compute_max_hz"):
        assert getattr(device, field) is None
        assert device.unknown[field] == "xpu-smi does not report it"


def test_reads_what_a_gpu_does_from_version_1(tmp_path: Path) -> None:
    source = source_with(tmp_path)
    sample = source.sample(source.discover().devices)[0]

    assert (sample.state, sample.taken_at_unix_s) == ("up", 7.0)
    assert sample.kernel_running_share == pytest.approx(0.635)
    assert sample.activity_source == "xpu-smi GPU utilization, averaged over all engines"
    assert sample.power_draw_mw == 118_720
    assert sample.clock_compute_hz == 2_350_000_000
    assert (sample.temperature_c, sample.temperature_memory_c) == (64, 70)
    assert sample.memory_used_bytes == 9216 << 20
    assert sample.memory_free_bytes == 25_669_140_480 - (9216 << 20)
    assert sample.memory_bus_active_share is None
    assert "xpu-smi does not report it" in sample.unknown["memory_bus_active_share"]


def test_tiles_add_up_to_the_card_unless_the_card_has_its_own_value(tmp_path: Path) -> None:
    source = source_with(tmp_path)
    sample = source.sample(source.discover().devices)[1]

    assert sample.power_draw_mw == 281_130
    assert sample.kernel_running_share == pytest.approx(0.6)
    assert sample.memory_bus_active_share == pytest.approx(0.15)
    assert sample.memory_used_bytes == 5120 << 20
    assert sample.clock_compute_hz == 1_600_000_000
    assert sample.temperature_c == 38
    assert sample.memory_free_bytes is None
    assert "total" in sample.unknown["memory_free_bytes"]


def test_reads_what_a_gpu_does_from_version_2(tmp_path: Path) -> None:
    source = source_with(tmp_path, stats_0=recorded("xpu_smi_stats_v2.json"))
    sample = source.sample(source.discover().devices)[0]

    assert sample.kernel_running_share == pytest.approx(0.7225)
    assert sample.memory_bus_active_share == pytest.approx(0.315)
    assert sample.power_draw_mw == 122_700
    assert sample.clock_compute_hz == 2_400_000_000
    assert (sample.temperature_c, sample.temperature_memory_c) == (66, 72)
    assert sample.memory_used_bytes == round(10240.5 * (1 << 20))


def test_one_failing_gpu_of_two_is_down_and_the_other_still_comes(tmp_path: Path) -> None:
    source = source_with(tmp_path, stats_0='{"error": "device not found", "errno": 22}')
    lost, good = source.sample(source.discover().devices)

    assert (lost.state, lost.state_reason) == ("down", "xpu-smi answers: device not found")
    assert lost.memory_used_bytes is None
    assert good.state == "up"
    assert good.power_draw_mw == 281_130


def test_a_gpu_whose_details_cannot_be_read_is_still_listed(tmp_path: Path) -> None:
    late = ToolOutput(text=None, reason="xpu-smi gave no answer within 15 s")
    device = source_with(tmp_path, detail_1=late).discover().devices[1]

    assert device.name == "Intel(R) Arc(TM) Pro B60 Graphics"
    assert device.pci_bus_id == "0000:1c:00.0"
    assert device.memory_total_bytes is None
    assert device.unknown["memory_total_bytes"] == late.reason


@pytest.mark.parametrize(
    "text",
    [
        recorded("xpu_smi_discovery.json")[:300],
        "",
        "{}",
        "[1]",
        "Level Zero Initialization Error",
        "[" * 100_000,
    ],
    ids=["truncated", "nothing", "empty object", "list", "words", "nested"],
)
def test_garbage_from_xpu_smi_is_a_problem_with_a_fix(tmp_path: Path, text: str) -> None:
    found = source_with(tmp_path, listing=ToolOutput(text=text)).discover()

    assert found.devices == ()
    assert found.absent_reason == ""
    (problem,) = found.problems
    assert problem.code == "intel.unreadable"
    assert problem.evidence.startswith("xpu-smi ")
    assert problem.fix.startswith("xpu-smi discovery -j")


@pytest.mark.parametrize(
    "text", ['{"foo": 1}', '{"device_level": null}', '{"power": [], "memory": {"used_mib": 3}}']
)
def test_statistics_of_an_unknown_shape_are_a_gpu_without_an_answer(tmp_path: Path, text: str) -> None:
    source = source_with(tmp_path, stats_0=text)
    lost, good = source.sample(source.discover().devices)

    assert lost.state == "down"
    assert lost.state_reason
    assert good.state == "up"


@pytest.mark.parametrize("value", ["18446744073709551615", "-1", "101", '"N/A"', "null", "true", "1e999"])
def test_an_impossible_utilization_is_absent(tmp_path: Path, value: str) -> None:
    source = source_with(tmp_path, stats_0=recorded("xpu_smi_stats_v1.json").replace("63.5", value))
    sample = source.sample(source.discover().devices)[0]

    assert sample.kernel_running_share is None
    assert sample.unknown["kernel_running_share"]
    assert sample.power_draw_mw == 118_720


def test_the_reason_of_a_tool_that_hangs_is_passed_on(tmp_path: Path) -> None:
    late = ToolOutput(text=None, reason="xpu-smi gave no answer within 15 s")
    assert source_with(tmp_path, listing=late).discover().problems[0].evidence == late.reason

    source = source_with(tmp_path, stats_0=late)
    assert source.sample(source.discover().devices)[0].state_reason == late.reason


def test_neither_xpu_smi_nor_a_card_is_an_absence(tmp_path: Path) -> None:
    found = IntelSource(NO_TOOLS, tmp_path).discover()

    assert found.devices == ()
    assert found.problems == ()
    assert found.absent_reason == "xpu-smi is not installed, and sysfs shows no Intel GPU for compute"


@pytest.mark.parametrize("listed", ["null", '"No device discovered"', "[]"])
def test_an_xpu_smi_without_devices_is_an_absence(tmp_path: Path, listed: str) -> None:
    found = source_with(tmp_path, listing=f'{{"device_list": {listed}}}').discover()

    assert found.absent_reason.startswith("xpu-smi finds no Intel GPU")


# sysfs


def test_reads_a_discrete_card_of_i915_from_sysfs(tmp_path: Path) -> None:
    make_card(tmp_path, 1, "0000:03:00.0", "i915", ARC_I915)
    source = IntelSource(NO_TOOLS, tmp_path)
    (device,) = source.discover().devices
    (sample,) = source.sample([device])

    assert (device.index, device.name, device.pci_bus_id) == (1, "Intel GPU 0x56a0", "0000:03:00.0")
    assert device.driver_version == "i915 (in the kernel)"
    assert device.memory_total_bytes == 17_095_983_104
    assert (device.memory_source, device.unified_memory) == ("sysfs", False)
    assert device.clock_compute_max_hz == 2_400_000_000
    assert device.power_limit_default_mw == 190_000
    assert device.uuid is None
    assert device.unknown["uuid"] == "sysfs has no identifier of the card"
    assert (sample.memory_free_bytes, sample.memory_used_bytes) == (9_000_000_000, 8_095_983_104)
    assert sample.clock_compute_hz == 2_400_000_000
    assert sample.power_limit_mw == 190_000
    assert sample.energy_total_mj == 5_000_000
    assert sample.temperature_c == 51
    assert sample.kernel_running_share is None
    assert "xpu-smi" in sample.unknown["kernel_running_share"]


def test_power_is_the_growth_of_the_energy_counter(tmp_path: Path) -> None:
    make_card(tmp_path, 0, "0000:03:00.0", "i915", ARC_I915)
    times = iter([10.0, 12.0, 14.0])
    source = IntelSource(NO_TOOLS, tmp_path, monotonic=lambda: next(times))
    devices = source.discover().devices
    counter = tmp_path / "class/drm/card0/device/hwmon/hwmon4/energy1_input"

    (first,) = source.sample(devices)
    counter.write_text("5300000000\n")
    (second,) = source.sample(devices)
    counter.write_text("100\n")
    (wrapped,) = source.sample(devices)

    assert first.power_draw_mw is None
    assert "second sample" in first.unknown["power_draw_mw"]
    assert second.power_draw_mw == 150_000
    assert wrapped.power_draw_mw is None
    assert "impossible" in wrapped.unknown["power_draw_mw"]


def test_reads_tiles_clocks_and_labelled_sensors_of_xe(tmp_path: Path) -> None:
    files = {
        "device/tile0/physical_vram_size_bytes": "12884901888\n",
        "device/tile1/physical_vram_size_bytes": "12884901888\n",
        "device/tile0/gt0/freq0/act_freq": "2850\n",
        "device/tile0/gt0/freq0/rp0_freq": "2900\n",
        "device/hwmon/hwmon2/energy2_input": "77000000\n",
        "device/hwmon/hwmon2/power1_max": "0\n",
        "device/hwmon/hwmon2/temp2_label": "pkg\n",
        "device/hwmon/hwmon2/temp2_input": "48500\n",
        "device/hwmon/hwmon2/temp3_label": "vram\n",
        "device/hwmon/hwmon2/temp3_input": "56000\n",
    }
    make_card(tmp_path, 0, "0000:03:00.0", "xe", files)
    source = IntelSource(NO_TOOLS, tmp_path)
    (device,) = source.discover().devices
    (sample,) = source.sample([device])

    assert device.memory_total_bytes == 2 * 12_884_901_888
    assert device.clock_compute_max_hz == 2_900_000_000
    assert sample.clock_compute_hz == 2_850_000_000
    assert sample.energy_total_mj == 77_000
    assert (sample.temperature_c, sample.temperature_memory_c) == (48, 56)
    assert sample.power_limit_mw is None
    assert sample.memory_used_bytes is None
    assert sample.memory_free_bytes is None


def test_leaves_out_other_vendors_connectors_and_old_integrated_gpus(tmp_path: Path) -> None:
    make_card(tmp_path, 0, "0000:00:02.0", "i915", {})
    make_card(tmp_path, 1, "0000:01:00.0", "nvidia", {"device/vendor": "0x10de\n"})
    (tmp_path / "class/drm/card0-HDMI-A-1").mkdir()

    assert IntelSource(NO_TOOLS, tmp_path).discover().devices == ()


def test_an_integrated_gpu_of_xe_shares_the_machines_memory(tmp_path: Path) -> None:
    make_card(tmp_path, 0, "0000:00:02.0", "xe", {})
    (device,) = IntelSource(NO_TOOLS, tmp_path).discover().devices

    assert device.unified_memory is True
    assert device.memory_total_bytes is None
    assert device.unknown["memory_total_bytes"] == "an integrated GPU uses the machine's memory"


def test_a_card_that_vanishes_is_down_and_the_other_still_comes(tmp_path: Path) -> None:
    make_card(tmp_path, 0, "0000:03:00.0", "i915", ARC_I915)
    make_card(tmp_path, 1, "0000:04:00.0", "i915", ARC_I915)
    source = IntelSource(NO_TOOLS, tmp_path)
    devices = source.discover().devices
    (tmp_path / "class/drm/card0/device").unlink()
    lost, good = source.sample(devices)

    assert lost.state == "down"
    assert "card0 is gone" in lost.state_reason
    assert good.state == "up"
    assert good.temperature_c == 51


def test_sysfs_takes_over_from_a_broken_xpu_smi_and_says_so(tmp_path: Path) -> None:
    make_card(tmp_path, 0, "0000:03:00.0", "i915", ARC_I915)
    source = source_with(tmp_path, listing="Segmentation fault")
    found = source.discover()

    assert [device.memory_source for device in found.devices] == ["sysfs"]
    assert [problem.code for problem in found.problems] == ["intel.unreadable"]
    assert source.sample(found.devices)[0].temperature_c == 51


def test_a_card_that_xpu_smi_leaves_out_is_a_problem(tmp_path: Path) -> None:
    make_card(tmp_path, 0, "0000:03:00.0", "xe", {})
    found = source_with(tmp_path, listing='{"device_list": null}').discover()

    assert len(found.devices) == 1
    (problem,) = found.problems
    assert problem.code == "intel.not_listed"
    assert problem.evidence == "xpu-smi finds no Intel GPU, but the kernel shows 0000:03:00.0"
