"""What collectors look at: one frame, what has added up so far, and how much may be told."""

import dataclasses
import functools
from collections.abc import Callable, Mapping

from flatout.monitor.export.device_metrics import UP
from flatout.monitor.export.labels import Admission, LabelLimits, label
from flatout.monitor.export.seen import Seen
from flatout.records.device import Device, DeviceSample
from flatout.records.watching import Frame

Price = Callable[[Device], float | None]


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One GPU at this moment, and the labels that tell it from others."""

    device: Device
    sample: DeviceSample
    # Its index, and an identity that survives reordering.
    labels: tuple[str, str]

    @property
    def is_up(self) -> bool:
        """Whether it answers."""
        return self.sample.state == "up"

    @property
    def key(self) -> str:
        """As samples name it."""
        return self.sample.uuid or f"{self.sample.index}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Look:
    """One collection. Nothing here touches a device."""

    frame: Frame
    now_unix_s: float
    seen: Seen = dataclasses.field(default_factory=Seen)
    admission: Admission = dataclasses.field(default_factory=Admission)
    limits: LabelLimits = dataclasses.field(default_factory=LabelLimits)
    usd_per_hour: Price = lambda _device: None
    errors: Mapping[str, int] = dataclasses.field(default_factory=dict)
    scrapes: int = 0
    last_collect_s: float | None = None

    @functools.cached_property
    def gpus(self) -> list[Gpu]:
        """Each GPU once, as many as may be told of. The CPU is part of the node, not one of them."""
        found = [
            Gpu(device, sample, _labels(device))
            for device, sample in zip(self.frame.devices, self.frame.samples, strict=False)
            if device.vendor != "cpu"
        ]
        distinct = self.admission.unique(found, lambda gpu: gpu.labels, UP.name)
        return self.admission.first(distinct, self.limits.devices, UP.name)


def _labels(device: Device) -> tuple[str, str]:
    return (str(device.index), label(device.uuid or f"{device.vendor}-{device.index}"))
