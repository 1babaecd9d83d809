"""Whether GPU memory came back after its holders were ended: drivers are asked before and after."""

import dataclasses
import time
from collections.abc import Callable, Collection, Sequence

from flatout.hardware.machine import discover_devices
from flatout.hardware.protocol import DeviceSource
from flatout.records.device import Device, DeviceSample
from flatout.records.stopping import MemoryBack

# A driver takes a while to clear what a dead process held.
_WITHIN_S = 10.0
_LOOK_S = 0.25


@dataclasses.dataclass(frozen=True)
class Held:
    """One device at one instant, and what some processes hold on it."""

    device: Device
    sample: DeviceSample
    # None where the driver does not say who holds it, or how much.
    bytes_by_pid: dict[int, int | None] | None

    def of(self, pids: Collection[int]) -> int | None:
        """What these hold together."""
        if self.bytes_by_pid is None:
            return None
        found = [self.bytes_by_pid[pid] for pid in pids if pid in self.bytes_by_pid]
        return None if None in found else sum(held for held in found if held is not None)


def look_at_memory(sources: Sequence[DeviceSource]) -> list[Held]:
    """Every GPU, and who holds how much of it."""
    devices, samples, _ = discover_devices(sources)
    return [
        Held(device, sample, _by_pid(sample))
        for device, sample in zip(devices, samples, strict=True)
        if device.vendor != "cpu"
    ]


def memory_back(
    sources: Sequence[DeviceSource],
    before: Sequence[Held],
    pids: Collection[int],
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[MemoryBack, ...]:
    """What these processes held before and hold now, on devices where they held any, or where none can say.

    Looks again until all of it is back, for ten seconds.
    """
    concerned = [held for held in before if held.of(pids) != 0]
    if not concerned:
        return ()
    deadline = time.monotonic() + _WITHIN_S
    while True:
        now = {_key(held): held for held in look_at_memory(sources)}
        found = tuple(_compared(held, now.get(_key(held)), pids) for held in concerned)
        if not any(one.held_after_bytes for one in found) or time.monotonic() >= deadline:
            return found
        sleep(_LOOK_S)


def _compared(before: Held, after: Held | None, pids: Collection[int]) -> MemoryBack:
    reason = (
        before.sample.unknown.get("processes") or "the driver does not list them, or not how much they hold"
    )
    lost = "the device does not answer any more"
    return MemoryBack(
        index=before.device.index,
        uuid=before.device.uuid,
        held_before_bytes=before.of(pids),
        held_after_bytes=after.of(pids) if after else None,
        used_before_bytes=before.sample.memory_used_bytes,
        used_after_bytes=after.sample.memory_used_bytes if after else None,
        unknown={
            "uuid": before.device.unknown.get("uuid", reason),
            "held_before_bytes": reason,
            "held_after_bytes": reason if after else lost,
            "used_before_bytes": before.sample.unknown.get("memory_used_bytes", reason),
            "used_after_bytes": after.sample.unknown.get("memory_used_bytes", reason) if after else lost,
        },
    )


def _by_pid(sample: DeviceSample) -> dict[int, int | None] | None:
    """By pid; a pid of another namespace is none of ours, though its number be the same.

    A process that has ended and is still listed counts: its memory has not come back.
    """
    if sample.processes is None:
        return None
    ours = [found for found in sample.processes if found.name is not None or found.gone]
    if len(ours) < len(sample.processes) and not ours:
        return None  # all of them strangers: pids of another namespace, in which ours have other numbers
    return {found.pid: found.memory_bytes for found in ours}


def _key(held: Held) -> str:
    return held.device.uuid or f"{held.device.vendor} {held.device.index}"
