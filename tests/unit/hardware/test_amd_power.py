"""AMD's power caps through amdsmi: microwatts there, milliwatts here, and refusals in words."""

import threading
from typing import Any

import pytest

from flatout.hardware.amd.power import AmdPowerControl
from flatout.hardware.power_limits import NoPowerControl, PowerControls, PowerRefused
from tests.fakes.machines import h200


class Library:
    """The few functions of amdsmi that are needed, with one GPU of 750 W."""

    class AmdSmiException(Exception):
        pass

    def __init__(self, *, refused: str = "") -> None:
        self.cap_uw = 700_000_000
        self.refused = refused
        self.ended = False

    def amdsmi_init(self) -> None: ...

    def amdsmi_shut_down(self) -> None:
        self.ended = True

    def amdsmi_get_processor_handles(self) -> list[str]:
        return ["handle"]

    def amdsmi_get_gpu_device_uuid(self, _handle: str) -> str:
        return "73ff74a1"

    def amdsmi_get_power_cap_info(self, _handle: str) -> dict[str, Any]:
        return {
            "power_cap": self.cap_uw,
            "min_power_cap": 0,
            "max_power_cap": 750_000_000,
            "default_power_cap": 750_000_000,
        }

    def amdsmi_set_power_cap(self, _handle: str, sensor: int, cap_uw: int) -> None:
        assert sensor == 0
        if self.refused:
            raise self.AmdSmiException(self.refused)
        self.cap_uw = cap_uw


def test_reads_and_sets_in_milliwatts() -> None:
    library = Library()
    control = AmdPowerControl(library)
    assert control.limits("73ff74a1").limit_mw == 700_000
    control.set_limit("73ff74a1", 600_000)
    assert library.cap_uw == 600_000_000
    assert control.limits("73ff74a1").limit_mw == 600_000
    control.close()
    assert library.ended


def test_refusals_have_a_kind() -> None:
    denied = AmdPowerControl(Library(refused="AMDSMI_STATUS_NO_PERM - Permission Denied"))
    with pytest.raises(PowerRefused) as error:
        denied.set_limit("73ff74a1", 600_000)
    assert error.value.kind == "permission"
    with pytest.raises(PowerRefused) as error:
        AmdPowerControl(Library()).set_limit("73ff74a1", 900_000)
    assert error.value.kind == "out of range"
    with pytest.raises(PowerRefused) as error:
        AmdPowerControl(Library()).limits("another")
    assert error.value.kind == "lost"

    def missing() -> Any:
        raise ImportError("amdsmi is not installed")

    with pytest.raises(PowerRefused, match="not installed"):
        AmdPowerControl(load=missing).limits("73ff74a1")


def test_a_library_that_did_not_start_is_started_again_at_the_next_question() -> None:
    class Late(Library):
        starts = 0

        def amdsmi_init(self) -> None:
            self.starts += 1
            if self.starts == 1:
                raise self.AmdSmiException("AMDSMI_STATUS_INIT_ERROR")

    library = Late()
    control = AmdPowerControl(library)
    with pytest.raises(PowerRefused, match="INIT_ERROR"):
        control.limits("73ff74a1")
    assert control.limits("73ff74a1").limit_mw == 700_000


def test_an_end_that_blocks_holds_nobody_up() -> None:
    library, free = Library(), threading.Event()
    library.amdsmi_shut_down = lambda: free.wait(60)  # type: ignore[method-assign,assign,return-value]
    control = AmdPowerControl(library, call_timeout_s=0.05)
    control.limits("73ff74a1")
    control.close()
    assert not free.is_set()
    free.set()


def test_vendors_without_a_way_and_parts_of_a_gpu_say_why() -> None:
    controls = PowerControls([NoPowerControl("apple", "macOS sets them itself")])
    for device, why in (
        (h200(vendor="apple"), "macOS"),
        (h200(vendor="intel"), "does not know how"),
        (h200(mig_enabled=True), "MIG is on"),
        (h200(uuid=None), "no uuid"),
    ):
        with pytest.raises(PowerRefused, match=why):
            controls.for_device(device).limits("x")
