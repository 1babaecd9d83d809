"""Intel's device source: `xpu-smi` if it works, else sysfs, and the same way for the samples."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from flatout.hardware.command import RunTool, run_tool
from flatout.hardware.intel.through_sysfs import Sysfs
from flatout.hardware.intel.through_xpu_smi import NOT_INSTALLED, XpuSmi, XpuSmiFailed
from flatout.hardware.protocol import Discovery, Problem
from flatout.records.device import Device, DeviceSample, Vendor

_FIX = (
    "xpu-smi discovery -j   # run it by hand; Level Zero must be installed and this user in the group render"
)


class IntelSource:
    """Intel's GPUs. `sysfs` is where the kernel's view of the devices is mounted."""

    def __init__(
        self,
        run: RunTool = run_tool,
        sysfs: Path = Path("/sys"),
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._xpu_smi = XpuSmi(run, clock=clock)
        self._sysfs = Sysfs(sysfs, clock=clock, monotonic=monotonic)
        self._way: XpuSmi | Sysfs | None = None

    @property
    def vendor(self) -> Vendor:
        """Whose devices these are."""
        return "intel"

    def discover(self) -> Discovery:
        """The GPUs that xpu-smi lists; where it cannot, those that the kernel shows."""
        problems: tuple[Problem, ...] = ()
        try:
            devices = self._xpu_smi.devices()
            reason = "xpu-smi finds no Intel GPU"
        except XpuSmiFailed as error:
            devices, reason = (), str(error)
            if reason != NOT_INSTALLED:
                problems = (Problem(code="intel.unreadable", evidence=reason, fix=_FIX),)
        if devices:
            self._way = self._xpu_smi
            return Discovery(devices=devices)
        self._way = self._sysfs
        devices = self._sysfs.devices()
        if devices:
            return Discovery(devices=devices, problems=problems or self._not_listed(reason, devices))
        if problems:
            return Discovery(problems=problems)
        return Discovery(absent_reason=f"{reason}, and sysfs shows no Intel GPU for compute")

    def sample(self, devices: Sequence[Device], *, thoroughly: bool = True) -> list[DeviceSample]:  # noqa: ARG002
        """One sample for each of these devices, in order, the way they were found."""
        if self._way is None:
            self.discover()
        return (self._way or self._sysfs).samples(devices)

    def close(self) -> None:
        """Nothing is held open."""

    def _not_listed(self, reason: str, devices: tuple[Device, ...]) -> tuple[Problem, ...]:
        """xpu-smi works and yet leaves out a GPU that the kernel shows."""
        if reason == NOT_INSTALLED:
            return ()
        cards = ", ".join(device.pci_bus_id or str(device.index) for device in devices)
        return (
            Problem(code="intel.not_listed", evidence=f"{reason}, but the kernel shows {cards}", fix=_FIX),
        )
