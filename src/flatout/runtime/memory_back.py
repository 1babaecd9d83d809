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
    """One device at one instant."""

    device: Device
    sample: DeviceSample

    def known(self, pids: Collection[int]) -> set[int] | None:
        """Which of these processes are on it; None where the driver does not say, or means others.

        Where all that it lists are strangers, its pids are of another namespace, and ours have other numbers.
        """
        listed = self.sample.processes
        if listed is None or (listed and all(found.name is None and not found.gone for found in listed)):
            return None
        return {found.pid for found in listed if found.pid in pids and found.name is not None}

    @property
    def pids(self) -> set[int]:
        """Everybody on it who is a process of this machine's."""
        return {found.pid for found in self.sample.processes or () if found.name is not None}

    def held_by(self, pids: Collection[int] | None) -> int | None:
        """What the driver lists as theirs, all together."""
        if pids is None or self.sample.processes is None:
            return None
        held = [found.memory_bytes for found in self.sample.processes if found.pid in pids]
        return None if None in held else sum(one for one in held if one is not None)


def look_at_memory(sources: Sequence[DeviceSource]) -> list[Held]:
    """Every GPU, and who holds how much of it."""
    devices, samples, _ = discover_devices(sources)
    return [
        Held(device, sample)
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
    # Those who were known before are counted by their pids: a process that has ended holds no device file.
    concerned = [(held, known) for held in before if (known := held.known(pids)) != set()]
    if not concerned:
        return ()
    deadline = time.monotonic() + _WITHIN_S
    while True:
        now = {_key(held): held for held in look_at_memory(sources)}
        found = tuple(_compared(held, now.get(_key(held)), known) for held, known in concerned)
        if not any(one.held_after_bytes for one in found) or time.monotonic() >= deadline:
            return found
        sleep(_LOOK_S)


def _compared(before: Held, after: Held | None, pids: Collection[int] | None) -> MemoryBack:
    reason = (
        before.sample.unknown.get("processes") or "the driver does not list them, or not how much they hold"
    )
    lost = "the device does not answer any more"
    return MemoryBack(
        index=before.device.index,
        uuid=before.device.uuid,
        held_before_bytes=before.held_by(pids),
        held_after_bytes=after.held_by(pids) if after else None,
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


def _key(held: Held) -> str:
    return held.device.uuid or f"{held.device.vendor} {held.device.index}"
