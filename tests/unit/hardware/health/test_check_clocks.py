"""What holds the clocks down: heat, power, settings."""

import pytest

from flatout.records.device import DeviceProcess
from tests.fakes.machines import healthy_h200, with_device, with_sample, without_gpu
from tests.unit.hardware.health.looking import look, only

# --- gpu.throttling ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("hardware_slowdown", "the hardware slows itself down"),
        ("thermal_hardware", "too hot"),
        ("power_brake", "power supply"),
    ],
)
def test_a_brake_by_the_hardware_fails(reason: str, words: str) -> None:
    result = only("gpu.throttling", with_sample(healthy_h200(), throttle_reasons=("power_cap", reason)))

    assert (result.status, result.device_index) == ("fail", 0)
    assert words in result.evidence
    assert result.fix.startswith("nvidia-smi -q -d PERFORMANCE -i 0 ")


def test_heat_that_the_driver_handles_warns() -> None:
    result = only("gpu.throttling", with_sample(healthy_h200(), throttle_reasons=("thermal_software",)))

    assert result.status == "warn"
    assert "hot" in result.evidence
    assert "power limit" in result.fix


def test_application_clocks_left_low_warn_with_the_reset() -> None:
    result = only("gpu.throttling", with_sample(healthy_h200(), throttle_reasons=("application_clocks",)))

    assert result.status == "warn"
    assert "application clocks" in result.evidence
    assert result.fix == "sudo nvidia-smi --reset-applications-clocks -i 0"


@pytest.mark.parametrize(
    ("reasons", "words"),
    [((), "no throttling"), (("idle",), "no throttling"), (("power_cap",), "at its power cap, as is normal")],
)
def test_idling_and_the_power_cap_are_normal(reasons: tuple[str, ...], words: str) -> None:
    result = only("gpu.throttling", with_sample(healthy_h200(), throttle_reasons=reasons))

    assert (result.status, result.fix) == ("ok", "")
    assert words in result.evidence


def test_reasons_that_cannot_be_read_are_unknown() -> None:
    machine = with_sample(
        healthy_h200(), throttle_reasons=None, unknown={"throttle_reasons": "not supported"}
    )

    result = only("gpu.throttling", machine)

    assert (result.status, result.evidence) == ("unknown", "not supported")


def test_a_lost_gpu_and_a_mig_instance_have_no_clocks_to_judge() -> None:
    machine = with_sample(healthy_h200(), throttle_reasons=None)
    assert look("gpu.throttling", with_sample(machine, state="down")) == []
    assert look("gpu.throttling", with_device(machine, parent_uuid="GPU-parent")) == []
    assert look("gpu.throttling", without_gpu()) == []


# --- gpu.temperature --------------------------------------------------------------------------------------


def test_a_gpu_five_degrees_below_its_slowdown_warns() -> None:
    result = only("gpu.temperature", with_sample(healthy_h200(), temperature_c=84))

    assert (result.status, result.device_index) == ("warn", 0)
    assert result.evidence == "84 C; it slows down at 89 C"
    assert "air flow" in result.fix


def test_one_degree_cooler_is_fine() -> None:
    result = only("gpu.temperature", with_sample(healthy_h200(), temperature_c=83))

    assert (result.status, result.evidence) == ("ok", "83 C; it slows down at 89 C")


def test_a_temperature_without_a_threshold_is_not_judged() -> None:
    result = only("gpu.temperature", with_device(healthy_h200(), temperature_slowdown_c=None))

    assert result.status == "unknown"
    assert "43 C" in result.evidence


def test_without_a_temperature_nothing_is_said() -> None:
    assert look("gpu.temperature", with_sample(healthy_h200(), temperature_c=None)) == []


# --- gpu.power-cap ----------------------------------------------------------------------------------------


def test_a_lowered_power_limit_warns_with_the_command_that_restores_it() -> None:
    result = only("gpu.power-cap", with_sample(healthy_h200(), power_limit_mw=450_000))

    assert (result.status, result.device_index) == ("warn", 0)
    assert result.evidence == "limited to 450 W; the default is 700 W"
    assert result.fix == "sudo nvidia-smi -i 0 -pl 700"


@pytest.mark.parametrize("limit_mw", [700_000, 750_000])
def test_the_default_limit_and_a_higher_one_are_fine(limit_mw: int) -> None:
    result = only("gpu.power-cap", with_sample(healthy_h200(), power_limit_mw=limit_mw))

    assert result.status == "ok"
    assert "drawing 125 W" in result.evidence


def test_another_vendors_card_is_not_sent_to_nvidia_smi() -> None:
    machine = with_device(with_sample(healthy_h200(), power_limit_mw=450_000), vendor="amd")

    assert only("gpu.power-cap", machine).fix == ""


def test_without_a_limit_or_a_default_nothing_is_said() -> None:
    assert look("gpu.power-cap", with_sample(healthy_h200(), power_limit_mw=None)) == []
    assert look("gpu.power-cap", with_device(healthy_h200(), power_limit_default_mw=None)) == []


def test_a_draw_that_cannot_be_read_is_left_out() -> None:
    assert only("gpu.power-cap", with_sample(healthy_h200(), power_draw_mw=None)).evidence == "limit 700 W"


# --- gpu.persistence --------------------------------------------------------------------------------------


def test_persistence_off_warns_with_the_command() -> None:
    result = only("gpu.persistence", with_sample(healthy_h200(), persistence_mode=False))

    assert (result.status, result.fix) == ("warn", "sudo nvidia-smi -pm 1")
    assert "persistence is off" in result.evidence


def test_persistence_on_is_fine() -> None:
    assert only("gpu.persistence", healthy_h200()).status == "ok"


def test_persistence_that_cannot_be_read_is_not_mentioned() -> None:
    assert look("gpu.persistence", with_sample(healthy_h200(), persistence_mode=None)) == []


def test_clocks_that_follow_something_harmless_are_said_and_fine() -> None:
    result = only("gpu.throttling", with_sample(healthy_h200(), throttle_reasons=("idle", "sync_boost")))
    assert result.status == "ok"
    assert "sync_boost" in result.evidence


def test_a_desktop_keeps_the_driver_loaded_without_persistence() -> None:
    desktop = DeviceProcess(pid=1200, kind="graphics", memory_bytes=1 << 28, name="Xorg", user="root")
    machine = with_sample(healthy_h200(), persistence_mode=False, processes=(desktop,))
    assert only("gpu.persistence", machine).status == "ok"
