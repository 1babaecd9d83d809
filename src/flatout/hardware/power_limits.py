"""Reading and setting how much a device may draw: a small protocol of its own, since few may set it."""

import dataclasses
from collections.abc import Sequence
from typing import Literal, Protocol

from flatout.records.device import Device, Vendor

RefusalKind = Literal["permission", "not supported", "lost", "out of range", "other"]


class PowerRefused(Exception):
    """A limit could not be read or set; `kind` says whether trying again or asking somebody else helps."""

    def __init__(self, kind: RefusalKind, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason


@dataclasses.dataclass(frozen=True, kw_only=True)
class PowerLimits:
    """What a device may draw now, and between which limits that can be set."""

    limit_mw: int
    min_mw: int
    max_mw: int
    default_mw: int | None = None

    def within(self, limit_mw: int) -> int:
        """The nearest limit that the device takes."""
        return min(max(limit_mw, self.min_mw), self.max_mw)


class PowerControl(Protocol):
    """One vendor's way to the limits of its devices, which are named by their uuid."""

    @property
    def vendor(self) -> Vendor:
        """Whose devices these are."""

    def limits(self, uuid: str) -> PowerLimits:
        """What holds now. Raises PowerRefused."""

    def set_limit(self, uuid: str, limit_mw: int) -> None:
        """Set it, within what the device takes. Raises PowerRefused."""

    def command_for(self, uuid: str, limit_mw: int) -> str:
        """What an administrator would type to set it."""

    def close(self) -> None:
        """Give back whatever was taken. Safe to call twice."""


class NoPowerControl:
    """For vendors whose limits Flatout does not set."""

    def __init__(self, vendor: Vendor, reason: str) -> None:
        self.vendor: Vendor = vendor
        self._reason = reason

    def limits(self, uuid: str) -> PowerLimits:  # noqa: ARG002
        """Always refused."""
        raise PowerRefused("not supported", self._reason)

    def set_limit(self, uuid: str, limit_mw: int) -> None:  # noqa: ARG002
        """Always refused."""
        raise PowerRefused("not supported", self._reason)

    def command_for(self, uuid: str, limit_mw: int) -> str:  # noqa: ARG002
        """There is none."""
        return ""

    def close(self) -> None:
        """Nothing was taken."""


class PowerControls:
    """All vendors' controls as one: each device by its vendor's."""

    def __init__(self, controls: Sequence[PowerControl]) -> None:
        self._controls = {control.vendor: control for control in controls}

    def of(self, vendor: Vendor) -> PowerControl:
        """The control of one vendor's devices."""
        found = self._controls.get(vendor)
        return found or NoPowerControl(vendor, f"Flatout does not know how to limit {vendor} devices")

    def for_device(self, device: Device) -> PowerControl:
        """The control of this device; instances of a divided GPU share its limit and have none."""
        if device.parent_uuid or device.mig_enabled:
            return NoPowerControl(device.vendor, "MIG is on: its instances share one limit")
        if device.uuid is None:
            return NoPowerControl(device.vendor, f"the device has no uuid: {device.unknown.get('uuid', '')}")
        return self.of(device.vendor)

    def close(self) -> None:
        """Close them all."""
        for control in self._controls.values():
            control.close()


def default_controls() -> PowerControls:
    """Every vendor that lets its limits be set."""
    from flatout.hardware.amd.power import AmdPowerControl
    from flatout.hardware.nvidia.power import NvidiaPowerControl

    return PowerControls(
        [
            NvidiaPowerControl(),
            AmdPowerControl(),
            NoPowerControl("intel", "Intel's limits are set in sysfs by root; Flatout does not do that yet"),
            NoPowerControl("apple", "macOS sets the limits of Apple's GPUs itself"),
            NoPowerControl("cpu", "the limits of CPUs are not Flatout's to set"),
        ]
    )
