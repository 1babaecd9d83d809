"""What every vendor's file must offer, so that the rest of Flatout never asks which vendor it is."""

import dataclasses
from collections.abc import Sequence
from typing import Protocol

from flatout.records.device import Device, DeviceSample, Vendor


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """Something that kept a vendor's devices from being read, in words for the user."""

    code: str
    evidence: str
    fix: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Discovery:
    """The devices of one vendor. `absent_reason` says why there are none; `problems` what is broken."""

    devices: tuple[Device, ...] = ()
    absent_reason: str = ""
    problems: tuple[Problem, ...] = ()


class DeviceSource(Protocol):
    """One vendor's way to its devices. No method raises for what the machine lacks, or blocks for long."""

    @property
    def vendor(self) -> Vendor:
        """Whose devices these are."""

    def discover(self) -> Discovery:
        """The devices there are. A broken driver is a `Problem`, not an exception."""

    def sample(self, devices: Sequence[Device], *, thoroughly: bool = True) -> list[DeviceSample]:
        """One sample for each of these devices, in order; a lost one comes back with state "down".

        Not `thoroughly`: what changes slowly or is costly to read (processes, memory errors, links) may be
        that of the last thorough sample, for whoever asks many times a second.
        """

    def close(self) -> None:
        """Give back whatever was taken. Safe to call twice."""
