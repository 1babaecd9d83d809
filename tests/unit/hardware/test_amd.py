"""AMD's device source, through amdsmi and through rocm-smi."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flatout.hardware.amd import AmdSource
from flatout.hardware.amd.answers import load_amdsmi
from flatout.hardware.command import ToolOutput
from flatout.hardware.deadline import Pending, Worker
from tests.fakes.amdsmi import AmdSmiLibraryException, FakeAmdSmi
from tests.fakes.vendor_tools import FakeTools, recorded

NO_TOOLS = FakeTools({})
ROCM_SMI: dict[tuple[str, ...], str | ToolOutput] = {
    ("rocm-smi", "--showproductname"): recorded("rocm_smi_identity.json")
}


def not_installed() -> Any:
    raise ImportError("amdsmi is not installed")


def through_rocm_smi(state: str | ToolOutput, identity: str | ToolOutput = "") -> AmdSource:
    identity = identity or recorded("rocm_smi_identity.json")
    tools = FakeTools({("rocm-smi", "--showproductname"): identity, ("rocm-smi", "--showuse"): state})
    return AmdSource(run=tools, load=not_installed, clock=lambda: 12.5)


# amdsmi


def test_reads_what_a_gpu_is_through_amdsmi() -> None:
    found = AmdSource(FakeAmdSmi(), NO_TOOLS).discover()

    assert found.problems == ()
    assert found.absent_reason == ""
    first, second = found.devices
    assert (first.index, first.vendor, first.name) == (0, "amd", "AMD Instinct MI300X")
    assert first.uuid == "8eff74a1-0000-1000-803c-6f2d6d1c9d4a"
    assert first.memory_total_bytes == 206_141_652_992
    assert first.memory_source == "amdsmi"
    assert first.architecture == first.compute_capability == "gfx942"
    assert first.core_count == 304
    assert (first.driver_version, first.runtime_version) == ("6.14.14", "7.0.2")
    assert first.pci_bus_id == "0000:05:00.0"
    assert (first.pcie_generation_max, first.pcie_width_max) == (5, 16)
    assert (first.clock_compute_max_hz, first.clock_memory_max_hz) == (2_100_000_000, 1_300_000_000)
    assert first.power_limit_default_mw == first.power_limit_max_mw == 750_000
    assert first.power_limit_min_mw == 0
    assert (first.temperature_slowdown_c, first.temperature_shutdown_c) == (100, 110)
    assert (second.index, second.pci_bus_id) == (1, "0000:26:00.0")


def test_reads_what_a_gpu_does_through_amdsmi() -> None:
    source = AmdSource(FakeAmdSmi(), NO_TOOLS, clock=lambda: 99.0)
    busy, idle = source.sample(source.discover().devices)

    assert (busy.state, busy.taken_at_unix_s) == ("up", 99.0)
    assert busy.memory_used_bytes == 41_250_906_112
    assert busy.memory_free_bytes == 206_141_652_992 - 41_250_906_112
    assert (busy.kernel_running_share, busy.memory_bus_active_share) == (0.97, 0.38)
    assert busy.activity_source == "amdsmi gfx activity"
    assert (busy.clock_compute_hz, busy.clock_memory_hz) == (1_987_000_000, 1_300_000_000)
    assert (busy.power_draw_mw, busy.power_limit_mw) == (612_000, 750_000)
    assert busy.energy_total_mj == round(139_138_085 * 15.259 / 1000)
    assert (busy.temperature_c, busy.temperature_memory_c) == (71, 58)
    assert (busy.pcie_generation, busy.pcie_width) == (5, 16)
    assert (busy.ecc_corrected_since_boot, busy.ecc_uncorrected_since_boot) == (3, 0)
    assert busy.fan_speed_share is None
    assert busy.unknown["fan_speed_share"] == "AMDSMI_STATUS_NOT_SUPPORTED - Feature not supported"
    assert busy.processes is not None
    assert [(one.pid, one.name, one.memory_bytes) for one in busy.processes] == [
        (41772, "python3.12", 40_649_719_808)
    ]
    assert idle.kernel_running_share == 0.0
    assert idle.processes == ()


def test_placeholders_of_amdsmi_are_absent_and_say_why() -> None:
    source = AmdSource(FakeAmdSmi("amdsmi_placeholders.json"), NO_TOOLS)
    (device,) = source.discover().devices
    (sample,) = source.sample([device])

    for field in ("core_count", "driver_version", "clock_compute_max_hz", "power_limit_max_mw"):
        assert getattr(device, field) is None
        assert "placeholder" in device.unknown[field]
    assert device.unknown["runtime_version"] == "Could not find librocm-core.so"
    for field in ("kernel_running_share", "memory_bus_active_share", "clock_compute_hz", "pcie_width"):
        assert getattr(sample, field) is None
        assert "placeholder" in sample.unknown[field]
    assert sample.energy_total_mj is None
    assert sample.temperature_memory_c is None
    assert "impossible" in sample.unknown["temperature_memory_c"]


def test_falls_back_to_the_other_call_or_field_where_the_first_has_nothing() -> None:
    source = AmdSource(FakeAmdSmi("amdsmi_placeholders.json"), NO_TOOLS)
    (device,) = source.discover().devices
    (sample,) = source.sample([device])

    assert device.memory_total_bytes == 20_464 * 1024 * 1024
    assert sample.memory_used_bytes == 26 * 1024 * 1024
    assert sample.power_draw_mw == 17_000
    assert sample.temperature_c == 44
    assert (device.temperature_slowdown_c, device.temperature_shutdown_c) == (100, 105)
    assert sample.fan_speed_share == pytest.approx(0.2)
    assert sample.pcie_generation == 4


def test_an_absurd_pid_is_an_unknown_process_and_a_missing_name_is_none() -> None:
    source = AmdSource(FakeAmdSmi("amdsmi_placeholders.json"), NO_TOOLS)
    (sample,) = source.sample(source.discover().devices)

    assert sample.processes is not None
    nameless, absurd = sample.processes
    assert (nameless.pid, nameless.name, nameless.memory_bytes) == (4242, None, None)
    assert "placeholder" in nameless.unknown["memory_bytes"]
    assert (absurd.pid, absurd.name, absurd.memory_bytes) == (4_294_967_295, None, 1 << 20)
    assert "not a possible PID" in absurd.unknown["name"]


def test_one_lost_gpu_of_two_is_down_and_the_other_still_comes() -> None:
    library = FakeAmdSmi()
    source = AmdSource(library, NO_TOOLS)
    devices = source.discover().devices
    library.lost.add(1)
    good, lost = source.sample(devices)

    assert good.state == "up"
    assert good.power_draw_mw == 612_000
    assert lost.state == "down"
    assert lost.state_reason == "AMDSMI_STATUS_NOT_FOUND - Device Not found"
    assert lost.uuid == "31ff74a1-0000-1000-80d8-12a0c4e7b915"
    assert lost.memory_used_bytes is None
    assert lost.kernel_running_share is None


def test_a_gpu_lost_before_discovery_is_listed_with_a_problem() -> None:
    library = FakeAmdSmi()
    library.lost.add(0)
    found = AmdSource(library, NO_TOOLS).discover()

    assert [device.index for device in found.devices] == [0, 1]
    assert found.devices[0].uuid is None
    assert found.devices[1].name == "AMD Instinct MI300X"
    (problem,) = found.problems
    assert problem.code == "amd.unreadable"
    assert "GPU 0" in problem.evidence
    assert "Device Not found" in problem.evidence
    assert problem.fix


def test_functions_that_an_old_release_lacks_leave_only_their_fields_unknown() -> None:
    library = FakeAmdSmi()
    library.missing = {
        "amdsmi_get_gpu_memory_total",
        "amdsmi_get_gpu_memory_usage",
        "amdsmi_get_energy_count",
    }
    source = AmdSource(library, NO_TOOLS)
    devices = source.discover().devices
    sample = source.sample(devices)[0]

    assert devices[0].memory_total_bytes == 196_592 << 20
    assert sample.memory_used_bytes == 39_340 << 20
    assert sample.energy_total_mj is None
    assert "lacks the function" in sample.unknown["energy_total_mj"]


def test_a_driver_that_blocks_gives_the_last_sample_marked_stale() -> None:
    library = FakeAmdSmi()
    source = AmdSource(library, NO_TOOLS, read_timeout_s=1.5)
    devices = source.discover().devices
    before = source.sample(devices)
    library.blocked.add(1)
    try:
        free, stuck = source.sample(devices)
    finally:
        library.release.set()

    assert free.state == "up"
    assert stuck.state == "stale"
    assert "no answer" in stuck.state_reason
    assert stuck.taken_at_unix_s == before[1].taken_at_unix_s
    assert stuck.memory_used_bytes == before[1].memory_used_bytes


def test_several_gpus_that_block_are_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    wait = Worker.wait

    def waited(worker: Worker, pending: Pending[Any], timeout_s: float) -> Any:
        waits.append(timeout_s)
        return wait(worker, pending, timeout_s)

    library = FakeAmdSmi()
    source = AmdSource(library, NO_TOOLS, read_timeout_s=0.3)
    devices = source.discover().devices
    source.sample(devices)
    library.blocked |= {0, 1}
    monkeypatch.setattr(Worker, "wait", waited)
    try:
        assert [sample.state for sample in source.sample(devices)] == ["stale", "stale"]
        assert [device.uuid for device in source.discover().devices] == [None, None]
    finally:
        library.release.set()
    assert waits[1] <= 0, "the first has taken all the time"


def test_starts_a_new_session_after_every_gpu_was_lost_at_once() -> None:
    library = FakeAmdSmi()
    source = AmdSource(library, NO_TOOLS)
    devices = source.discover().devices
    library.lost = {0, 1}
    assert {sample.state for sample in source.sample(devices)} == {"down"}
    library.lost = set()

    assert {sample.state for sample in source.sample(devices)} == {"up"}
    assert (library.started, library.stopped) == (2, 1)


def test_closing_twice_shuts_the_library_down_once() -> None:
    library = FakeAmdSmi()
    source = AmdSource(library, NO_TOOLS)
    source.discover()
    source.close()
    source.close()

    assert library.stopped == 1


# which way


def test_neither_tool_is_an_absence_and_not_a_problem() -> None:
    found = AmdSource(run=NO_TOOLS, load=not_installed).discover()

    assert found.absent_reason == "amdsmi is not installed, and rocm-smi is not installed"
    assert found.devices == ()
    assert found.problems == ()


def test_an_amdsmi_without_gpus_is_an_absence() -> None:
    library = FakeAmdSmi()
    library.gpus = []

    assert AmdSource(library, NO_TOOLS).discover().absent_reason == "amdsmi finds no AMD GPU"


def test_an_amdsmi_that_does_not_start_is_a_problem_and_rocm_smi_takes_over() -> None:
    library = FakeAmdSmi()
    library.init_error = AmdSmiLibraryException("AMDSMI_STATUS_NO_PERM - Permission Denied")
    found = AmdSource(library, FakeTools(ROCM_SMI)).discover()

    assert [device.memory_source for device in found.devices] == ["rocm-smi", "rocm-smi"]
    (problem,) = found.problems
    assert problem.code == "amd.amdsmi_failed"
    assert problem.evidence == "amdsmi does not start: AMDSMI_STATUS_NO_PERM - Permission Denied"
    assert "/dev/kfd" in problem.fix


def test_an_amdsmi_that_does_not_start_is_a_problem_without_rocm_smi_too() -> None:
    library = FakeAmdSmi()
    library.init_error = OSError("libdrm_amdgpu.so.1: cannot open shared object file")
    found = AmdSource(library, NO_TOOLS).discover()

    assert found.devices == ()
    assert found.absent_reason == ""
    assert "libdrm_amdgpu" in found.problems[0].evidence


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("print('Unable to find libamd_smi.so'); {}['libamd_smi.so']", "KeyError"),
        ("raise OSError('libamd_smi.so: not found')", "OSError"),
        ("raise AttributeError('amdsmi_init')", "AttributeError"),
        ("import a_module_that_is_nowhere", "needs the module a_module_that_is_nowhere"),
    ],
)
def test_whatever_the_import_of_amdsmi_raises_becomes_a_reason_and_prints_nothing(
    body: str,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "amdsmi.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "amdsmi", raising=False)

    with pytest.raises(ImportError, match=reason):
        load_amdsmi()
    assert capsys.readouterr().out == ""
    found = AmdSource(run=NO_TOOLS).discover()
    assert reason in found.absent_reason
    assert found.absent_reason.endswith(", and rocm-smi is not installed")


# rocm-smi


def test_reads_what_a_gpu_is_through_rocm_smi() -> None:
    first, second = through_rocm_smi("").discover().devices

    assert (first.index, first.name, first.uuid) == (0, "Radeon RX 7900 XT", "0x9f3d2a6f1c8e4b57")
    assert first.memory_total_bytes == 21_458_059_264
    assert first.architecture == first.compute_capability == "gfx1100"
    assert (first.pci_bus_id, first.driver_version) == ("0000:03:00.0", "6.12.12")
    assert second.name == "AMD GPU 0x1900"
    assert second.uuid is None
    assert second.unknown["uuid"] == "rocm-smi reports 'N/A' for 'unique id'"
    assert second.memory_total_bytes is None
    assert second.unknown["memory_total_bytes"] == "rocm-smi reports 'None' for 'vram total memory (b)'"


@pytest.mark.parametrize("name", ["rocm_smi_state.json", "rocm_smi_state_after_warnings.txt"])
def test_reads_what_a_gpu_does_through_rocm_smi_also_after_warnings(name: str) -> None:
    source = through_rocm_smi(recorded(name))
    first, second = source.sample(source.discover().devices)

    assert (first.state, first.taken_at_unix_s) == ("up", 12.5)
    assert first.memory_used_bytes == 13_089_361_920
    assert first.memory_free_bytes == 21_458_059_264 - 13_089_361_920
    assert (first.kernel_running_share, first.memory_bus_active_share) == (0.98, 0.47)
    assert first.activity_source == "rocm-smi GPU use (%)"
    assert (first.clock_compute_hz, first.clock_memory_hz) == (2_525_000_000, 1_249_000_000)
    assert (first.power_draw_mw, first.power_limit_mw) == (213_000, 257_000)
    assert (first.temperature_c, first.temperature_memory_c) == (56, 62)
    assert first.fan_speed_share == 0.3
    assert (second.power_draw_mw, second.temperature_c) == (7222, 31)
    assert second.memory_used_bytes is None
    assert second.fan_speed_share is None
    assert second.unknown["fan_speed_share"] == "rocm-smi does not report 'fan speed (%)'"


def test_a_card_that_rocm_smi_drops_is_down_and_is_not_confused_with_its_neighbour() -> None:
    only_second = recorded("rocm_smi_state.json").replace('"card0"', '"gone"').replace('"card1"', '"card0"')
    source = through_rocm_smi(only_second)
    lost, good = source.sample(source.discover().devices)

    assert lost.state == "down"
    assert lost.state_reason == "rocm-smi reports nothing for this GPU"
    assert good.state == "up"
    assert good.temperature_c == 31


@pytest.mark.parametrize(
    "text",
    [
        recorded("rocm_smi_truncated.txt"),
        "",
        "{}",
        "[]",
        "not json",
        '{"card0": 3}',
        "{" * 100_000,
        '{"system": {}}',
    ],
    ids=["truncated", "nothing", "empty object", "list", "words", "no fields", "nested", "no card"],
)
def test_garbage_from_rocm_smi_is_a_problem_with_a_fix(text: str) -> None:
    found = through_rocm_smi("", ToolOutput(text=text)).discover()

    assert found.devices == ()
    assert found.absent_reason == ""
    (problem,) = found.problems
    assert problem.code == "amd.unreadable"
    assert problem.evidence.startswith("rocm-smi ")
    assert problem.fix.startswith("rocm-smi ")


def test_the_reason_of_a_tool_that_hangs_or_fails_is_passed_on() -> None:
    late = ToolOutput(text=None, reason="rocm-smi gave no answer within 15 s")
    assert "gave no answer within 15 s" in through_rocm_smi("", late).discover().problems[0].evidence

    source = through_rocm_smi(late)
    samples = source.sample(source.discover().devices)
    assert [(sample.state, sample.state_reason) for sample in samples] == [("down", late.reason)] * 2


@pytest.mark.parametrize("value", ["-1", "101", "NaN", "1e400", "9" * 5000, "98 %"])
def test_an_impossible_share_is_absent(value: str) -> None:
    source = through_rocm_smi(recorded("rocm_smi_state.json").replace('"98"', f'"{value}"'))
    sample = source.sample(source.discover().devices)[0]

    assert sample.kernel_running_share is None
    assert sample.unknown["kernel_running_share"]
    assert sample.power_draw_mw == 213_000


def test_names_from_the_tool_are_kept_as_they_are() -> None:
    name = "<script>alert(1)</script> \\u001b[31m"
    identity = recorded("rocm_smi_identity.json").replace("Radeon RX 7900 XT", name)
    first = through_rocm_smi("", identity).discover().devices[0]

    assert first.name == "<script>alert(1)</script> \x1b[31m"


def test_nothing_is_run_or_imported_before_it_is_asked_for() -> None:
    tools = FakeTools({})
    loads: list[int] = []
    load: Callable[[], Any] = lambda: loads.append(1)  # noqa: E731
    AmdSource(run=tools, load=load).close()

    assert tools.calls == []
    assert loads == []
