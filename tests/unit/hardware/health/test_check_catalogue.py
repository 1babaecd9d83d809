"""The list of checks, and how one is run."""

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator

import pytest

from flatout.hardware.health import catalogue
from flatout.hardware.health.catalogue import CHECKS, examine
from flatout.hardware.health.check import Check, Outcome, run_check
from flatout.records.device import Device, DeviceSample
from flatout.records.machine import Framework, Host, Machine, Place, VendorStatus
from tests.fakes.machines import healthy_h200, with_device, with_sample, without_gpu


def breaks_half_way(machine: Machine) -> Iterator[Outcome]:
    """Yields one outcome and raises before the next."""
    yield Outcome("ok", machine.devices[0].name)
    raise KeyError("power_limit_mw")


def test_a_healthy_h200_has_nothing_to_complain_of() -> None:
    results = examine(healthy_h200())

    assert [result for result in results if result.status != "ok"] == []
    assert [result for result in results if result.fix] == []
    assert len(results) > 20


def test_a_machine_without_a_gpu_fails_nothing() -> None:
    results = examine(without_gpu())

    assert {result.id for result in results if result.status != "ok"} == {"device.present"}


def test_a_check_that_raises_becomes_unknown_and_the_others_still_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = examine(healthy_h200())
    monkeypatch.setattr(catalogue, "CHECKS", (Check("broken.check", breaks_half_way), *CHECKS))

    broken, *others = examine(healthy_h200())

    assert (broken.id, broken.status, broken.device_index) == ("broken.check", "unknown", None)
    assert "KeyError: 'power_limit_mw'" in broken.evidence
    assert tuple(others) == whole


def test_a_result_carries_the_checks_id_and_the_devices_index() -> None:
    machine = with_device(healthy_h200(), index=5)
    check = Check("some.check", lambda m: [Outcome("warn", "seen", "do this", m.devices[0])])

    (result,) = run_check(check, machine)

    assert (result.id, result.status, result.evidence) == ("some.check", "warn", "seen")
    assert (result.fix, result.device_index) == ("do this", 5)


def test_ids_are_unique() -> None:
    assert [name for name, times in Counter(check.id for check in CHECKS).items() if times > 1] == []


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_every_check_has_a_regular_id_and_a_page_worth_reading(check: Check) -> None:
    assert re.fullmatch(r"[a-z]+\.[a-z-]+", check.id)
    assert len(check.explanation) >= 60


def test_no_function_is_listed_twice() -> None:
    assert len({check.look for check in CHECKS}) == len(CHECKS)


def unread_machine() -> Machine:
    """Everything is there, and nothing of it could be read."""
    return Machine(
        devices=(Device(index=0, vendor="nvidia", name="NVIDIA H200", mig_enabled=True),),
        samples=(DeviceSample(index=0, uuid=None, taken_at_unix_s=0.0),),
        vendors=(VendorStatus(vendor="nvidia"),),
        host=Host(
            system="Linux",
            python_version="3.12",
            cpu_count=16,
            memory_total_bytes=1 << 36,
            places=(Place(purpose="working folder", path="/"), Place(purpose="compile cache", path="/")),
        ),
        frameworks=tuple(Framework(name=name, installed=True) for name in ("torch", "tensorflow", "jax")),
        environment={},
    )


def test_nothing_is_in_order_by_being_unread() -> None:
    results = examine(unread_machine())

    # A card with a name is there, its driver answered, and an environment without variables is known.
    known = {"device.present", "driver.answers", "env.threads", "env.debug", "env.allocator"}
    assert {result.id for result in results if result.status == "ok"} <= known
    assert [result for result in results if result.status in ("warn", "fail")] == []
    assert not any("this check broke" in result.evidence for result in results)


NEVER_MISSING = ("index", "taken_at_unix_s", "state", "state_reason", "activity_source", "unknown")
READINGS = [field.name for field in dataclasses.fields(DeviceSample) if field.name not in NEVER_MISSING]


@pytest.mark.parametrize("reading", READINGS)
def test_no_single_missing_reading_breaks_a_check_or_raises_an_alarm(reading: str) -> None:
    results = examine(with_sample(healthy_h200(), **{reading: None}))

    assert {result.status for result in results} <= {"ok", "unknown"}
    assert not any("this check broke" in result.evidence for result in results)
