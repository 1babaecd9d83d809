"""Two H200s under work, whose clocks, power and counters go on by a second with each sample."""

from collections.abc import Sequence
from typing import Any

from flatout.hardware.protocol import Discovery
from flatout.records.device import Device, DeviceSample, Vendor
from tests.fakes.machines import H200_UUID, h200, h200_sample

SECOND_UUID = "GPU-99999999-aaaa-bbbb-cccc-000000000002"


class TwoBusyGpus:
    """Draws 500 W on each, of which the counter tells; runs kernels three quarters of the time."""

    def __init__(self, **sample: Any) -> None:
        self._sample = sample
        self.looks = 0
        self.is_closed = False

    @property
    def vendor(self) -> Vendor:
        return "nvidia"

    def discover(self) -> Discovery:
        return Discovery(devices=(h200(), h200(index=1, uuid=SECOND_UUID, pci_bus_id="00000000:4c:00.0")))

    def sample(self, devices: Sequence[Device], *, thoroughly: bool = True) -> list[DeviceSample]:
        self.looks += 1
        facts: dict[str, Any] = {
            "taken_at_unix_s": 1_760_000_000.0 + self.looks,
            "kernel_running_share": 0.75,
            "power_draw_mw": 500_000,
            "energy_total_mj": 1_000_000 + 500_000 * self.looks,
            **self._sample,
        }
        return [h200_sample(index=device.index, uuid=device.uuid, **facts) for device in devices]

    def close(self) -> None:
        self.is_closed = True


__all__ = ["H200_UUID", "SECOND_UUID", "TwoBusyGpus"]
