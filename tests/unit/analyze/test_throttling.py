"""Time lost to clock limits: by reason, by kind, and unknown where a reading is missing."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from flatout.analyze.throttling import ThrottlingFollower, limit_kind
from flatout.records.device import Device, DeviceSample
from flatout.records.energy import Throttling
from tests.fakes.machines import h200, h200_sample

FULL_HZ = 1_980_000_000


def sample(at_s: float, reasons: tuple[str, ...] | None = (), **changes: Any) -> DeviceSample:
    given = {"clock_compute_hz": FULL_HZ, "kernel_running_share": 1.0, **changes}
    return h200_sample(taken_at_unix_s=1000.0 + at_s, throttle_reasons=reasons, **given)


def throttling(samples: Iterable[DeviceSample], devices: Sequence[Device] = ()) -> Throttling:
    follower = ThrottlingFollower(devices)
    for one in samples:
        follower.add(one)
    return follower.total()


def test_a_clock_half_as_high_for_ten_seconds_loses_five() -> None:
    samples = [sample(0)]
    samples += [sample(n, ("thermal_software",), clock_compute_hz=FULL_HZ // 2) for n in range(1, 11)]
    found = throttling([*samples, sample(11)])
    assert found.lost_s == pytest.approx({"thermal": 5.0, "power": 0.0, "other": 0.0})
    assert found.given_s == {"thermal_software": pytest.approx(10.0)}
    assert (found.observed_s, found.unobserved_s) == (pytest.approx(11.0), 0.0)
    assert found.reference_hz == FULL_HZ


def test_heat_goes_before_power_and_a_slowdown_without_a_cause_is_other() -> None:
    assert limit_kind(("power_cap", "thermal_software")) == "thermal"
    assert limit_kind(("hardware_slowdown", "power_brake")) == "power"
    assert limit_kind(("hardware_slowdown",)) == "other"
    assert limit_kind(("idle",)) is None
    assert limit_kind(()) is None


def test_an_idle_device_under_a_limit_loses_nothing() -> None:
    samples = [
        sample(n, ("power_cap",), clock_compute_hz=345_000_000, kernel_running_share=0.0) for n in range(5)
    ]
    assert throttling([sample(-1), *samples]).lost_s == {"thermal": 0.0, "power": 0.0, "other": 0.0}


def test_half_busy_loses_half() -> None:
    limited = [
        sample(n, ("power_cap",), clock_compute_hz=FULL_HZ // 2, kernel_running_share=0.5) for n in (1, 5)
    ]
    assert throttling([sample(0), *limited]).lost_s == pytest.approx({"thermal": 0, "power": 1.0, "other": 0})


def test_a_device_limited_from_the_start_is_held_against_its_rated_clock() -> None:
    samples = [sample(n, ("power_cap",), clock_compute_hz=990_000_000) for n in range(3)]
    device = h200(clock_compute_max_hz=FULL_HZ)
    found = throttling(samples, [device])
    assert found.lost_s == pytest.approx({"thermal": 0.0, "power": 1.0, "other": 0.0})
    assert "rated" in found.reference_source


def test_unknown_reasons_are_time_not_observed_and_never_nothing_lost() -> None:
    found = throttling([sample(0, None), sample(1, None), sample(2, None)])
    assert found.lost_s is None
    assert found.unknown["lost_s"]
    assert (found.observed_s, found.unobserved_s) == (0.0, pytest.approx(2.0))


def test_a_limit_while_the_clock_is_unknown_makes_the_loss_unknown() -> None:
    found = throttling([sample(0), sample(1, ("power_cap",), clock_compute_hz=None), sample(2)])
    assert found.lost_s is None
    assert "clock was unknown" in found.unknown["lost_s"]
    assert found.given_s == {"power_cap": pytest.approx(1.0)}


def test_gaps_and_lost_devices_are_not_observed_and_stale_samples_say_nothing() -> None:
    limited = ("thermal_hardware",)
    samples = [
        sample(0, limited),
        sample(0, limited, state="stale", state_reason="blocked"),
        sample(600, limited),
        sample(601, None, state="down", state_reason="lost"),
        sample(602, limited),
        sample(603, limited),
    ]
    found = throttling(samples)
    assert found.given_s == {"thermal_hardware": pytest.approx(1.0)}
    assert found.unobserved_s == pytest.approx(602.0)


def test_two_devices_add_up_and_can_be_told_apart() -> None:
    follower = ThrottlingFollower()
    for n in range(3):
        follower.add(sample(n, uuid="a"))
        hz = FULL_HZ if n == 0 else FULL_HZ // 2
        follower.add(sample(n, ("power_cap",) if n else (), uuid="b", clock_compute_hz=hz))
    assert follower.of("a").lost_s == {"thermal": 0.0, "power": 0.0, "other": 0.0}
    total = follower.total()
    assert total.lost_s == pytest.approx({"thermal": 0.0, "power": 0.5, "other": 0.0})
    assert total.observed_s == pytest.approx(4.0)


def test_a_clock_that_is_set_back_stops_no_sum() -> None:
    at = (0, 1, 2, -3600, -3599, -3598)
    found = throttling([sample(at_s, ("thermal_software",)) for at_s in at])
    assert found.given_s == {"thermal_software": pytest.approx(4.0)}
    assert (found.observed_s, found.unobserved_s) == (pytest.approx(4.0), 0.0)


def test_a_look_that_comes_late_is_no_clock_that_was_set_back() -> None:
    found = throttling([sample(at_s, ("thermal_software",)) for at_s in (0, 2, 1, 2, 3)])
    assert found.given_s == {"thermal_software": pytest.approx(3.0)}
