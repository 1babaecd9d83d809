"""Was the machine busy with something else while we measured? Then the figures are not its ceilings."""

import resource
import time
from collections.abc import Sequence

import psutil

from flatout.hardware.protocol import DeviceSource
from flatout.records.device import Device

_BUSY_CPU_SHARE = 0.15
_BUSY_GPU_SHARE = 0.05
_HOLDS_MUCH_BYTES = 256 << 20


class Disturbance:
    """Compares what all CPUs did with what we and our children did, from when it was made to `words`."""

    def __init__(self) -> None:
        self._wall_s = time.monotonic()
        self._all_s = _busy_seconds()
        self._own_s = _own_seconds()
        self._found: list[str] = []

    def look_at(self, device: Device, source: DeviceSource) -> None:
        """Before measuring: is another process at work on the device?"""
        if device.vendor == "cpu":
            return
        [sample] = source.sample([device])
        computing = [process for process in sample.processes or () if process.kind == "compute"]
        holders = [process for process in computing if (process.memory_bytes or 0) > _HOLDS_MUCH_BYTES]
        if holders:
            self._found.append(f"another process (PID {holders[0].pid}) was on the device")
        elif (sample.kernel_running_share or 0) > _BUSY_GPU_SHARE:
            self._found.append("the device was busy before we began")

    def words(self) -> str:
        """What disturbed us; empty when nothing did."""
        elapsed = max(1e-3, time.monotonic() - self._wall_s)
        cpus = psutil.cpu_count() or 1
        others_s = _busy_seconds() - self._all_s - (_own_seconds() - self._own_s)
        share = others_s / elapsed / cpus
        found: Sequence[str] = self._found
        if share > _BUSY_CPU_SHARE:
            found = [*found, f"other programs used {100 * share:.0f} % of the CPUs meanwhile"]
        return "; ".join(found)


def _busy_seconds() -> float:
    """Seconds that all CPUs have worked; what a virtual machine's host took away counts as others' work."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0))


def _own_seconds() -> float:
    """CPU seconds of this process and of the children that have been reaped."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )
