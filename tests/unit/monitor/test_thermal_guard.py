"""The guard against heat on a device that warms up as its cap lets it: warns, caps, raises, puts back."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from flatout.hardware.nvidia.power import NvidiaPowerControl
from flatout.hardware.power_limits import PowerControls
from flatout.monitor.power.custody import PowerCustody
from flatout.monitor.thermal import ThermalGuard
from flatout.records.device import Device, DeviceSample
from flatout.records.thermal import ThermalEvent
from tests.fakes.machines import h200, h200_sample
from tests.fakes.nvml import NO_PERMISSION
from tests.fakes.nvml_with_limits import NvmlWithLimits

FOUND_MW = 690_000
SLOWDOWN_C = 89


class Oven:
    """A device whose temperature approaches what its power and the air around it make of it."""

    def __init__(
        self, machine: NvmlWithLimits, *, air_c: float, per_w: float = 0.1, tau_s: float = 60
    ) -> None:
        self.machine, self.air_c, self.per_w, self.tau_s = machine, air_c, per_w, tau_s
        self.heat_c, self.now_s = air_c, 1000.0

    def second(self) -> DeviceSample:
        watts = min(self.machine.limit_mw() / 1000, 650.0)
        self.now_s += 1
        self.heat_c += (self.air_c + self.per_w * watts - self.heat_c) / self.tau_s
        return h200_sample(
            uuid=self.machine.uuid(),
            taken_at_unix_s=self.now_s,
            temperature_c=int(self.heat_c),
            power_draw_mw=round(watts * 1000),
            throttle_reasons=("thermal_hardware",) if self.heat_c >= SLOWDOWN_C else (),
        )


@pytest.fixture
def machine(tmp_path: Path) -> NvmlWithLimits:
    fake = NvmlWithLimits(tmp_path / "nvml.json")
    fake.set_by_others(FOUND_MW)
    return fake


@pytest.fixture
def device(machine: NvmlWithLimits) -> Device:
    return h200(uuid=machine.uuid(), temperature_slowdown_c=SLOWDOWN_C)


class _WithoutWatchdog(PowerCustody):
    """The watchdog is shown elsewhere; here nobody is killed."""

    def _ensure_watchdog(self) -> None:
        return


@pytest.fixture
def custody(tmp_path: Path, machine: NvmlWithLimits) -> Iterator[PowerCustody]:
    controls = PowerControls([NvidiaPowerControl(machine)])
    with _WithoutWatchdog(controls, folder=tmp_path / "claims") as held:
        yield held
    assert machine.limit_mw() == FOUND_MW


def kinds(events: list[ThermalEvent]) -> set[str]:
    return {event.what for event in events}


def watch(guard: ThermalGuard, oven: Oven, seconds: int) -> tuple[list[ThermalEvent], float]:
    events: list[ThermalEvent] = []
    hottest = 0.0
    for _ in range(seconds):
        events += guard.look([oven.second()])
        hottest = max(hottest, oven.heat_c)
    return events, hottest


def test_warns_ahead_and_once(machine: NvmlWithLimits, device: Device) -> None:
    guard = ThermalGuard([device])
    events, hottest = watch(guard, Oven(machine, air_c=32), 400)
    assert hottest > SLOWDOWN_C  # nobody did anything about it
    assert [event.what for event in events] == ["warned"]
    assert (events[0].reaches_in_s or 0) > 5
    assert machine.sets() == []


def test_a_device_that_stays_below_is_left_alone(machine: NvmlWithLimits, device: Device) -> None:
    guard = ThermalGuard([device])
    events, _ = watch(guard, Oven(machine, air_c=18), 600)
    assert events == []


def test_caps_in_time_and_raises_when_the_air_is_cool_again(
    machine: NvmlWithLimits, device: Device, custody: PowerCustody
) -> None:
    guard = ThermalGuard([device], custody)
    oven = Oven(machine, air_c=32)
    events, hottest = watch(guard, oven, 900)
    assert {"warned", "capped"} <= kinds(events)
    assert hottest < SLOWDOWN_C
    assert 450_000 < machine.limit_mw() < FOUND_MW  # no more than it takes
    oven.air_c = 15
    events, _ = watch(guard, oven, 900)
    assert kinds(events) == {"raised"}
    assert machine.limit_mw() == FOUND_MW


def test_without_the_right_it_says_so_and_warns(
    machine: NvmlWithLimits, device: Device, custody: PowerCustody
) -> None:
    machine.plant("nvmlDeviceSetPowerManagementLimit", NO_PERMISSION)
    guard = ThermalGuard([device], custody)
    assert [event.what for event in guard.events_at_start] == ["cannot cap"]
    events, _ = watch(guard, Oven(machine, air_c=32), 400)
    assert kinds(events) == {"warned"}


def test_a_limit_that_others_set_is_theirs_from_then_on(tmp_path: Path, machine: NvmlWithLimits) -> None:
    device = h200(uuid=machine.uuid(), temperature_slowdown_c=SLOWDOWN_C)
    controls = PowerControls([NvidiaPowerControl(machine)])
    with _WithoutWatchdog(controls, folder=tmp_path / "claims") as custody:
        guard = ThermalGuard([device], custody)
        machine.set_by_others(680_000)
        events, _ = watch(guard, Oven(machine, air_c=32), 400)
        assert kinds(events) == {"warned", "cannot cap"}
    assert machine.limit_mw() == 680_000
    assert custody.restored[0].outcome == "changed by others"
