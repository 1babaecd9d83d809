"""Everything that is seen of a machine at one moment: the document of `flatout watch`."""

import dataclasses

from flatout.records.device import Device, DeviceSample
from flatout.records.live import LiveJob
from flatout.records.machine import VendorStatus
from flatout.records.processes import JobHere

FRAME_KIND = "watch"
FRAME_VERSION = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostSample:
    """The machine around the GPUs."""

    cpu_share: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Frame:
    """One look at a machine; samples are in the order of devices."""

    host: str
    taken_at_unix_s: float
    devices: tuple[Device, ...] = ()
    samples: tuple[DeviceSample, ...] = ()
    # Jobs that run under Flatout, and all that train here, as far as this user may see them.
    live_jobs: tuple[LiveJob, ...] = ()
    jobs: tuple[JobHere, ...] = ()
    machine: HostSample = HostSample()
    vendors: tuple[VendorStatus, ...] = ()
    notes: tuple[str, ...] = ()
