"""One vendor's devices, sampled again and again in one thread, with what each of them did."""

import dataclasses
import threading
import time
from collections import deque
from collections.abc import Callable

from flatout.hardware.machine import vendor_statuses
from flatout.hardware.protocol import DeviceSource
from flatout.monitor.history import DeviceHistory
from flatout.records.device import Device, DeviceSample, Vendor
from flatout.records.machine import VendorStatus

# Devices come and go with drivers, MIG and reboots of single GPUs.
REDISCOVER_EVERY_S = 60.0
# When no device answers, the driver may have been loaded anew.
REDISCOVER_LOST_S = 5.0
# A vendor who is asked through a program (hundreds of milliseconds) is asked as often as this allows.
_BUSY_SHARE_MOST = 0.1
_PAUSE_MOST_S = 5.0
# Without an answer for so much longer than usual, what is known is old.
_LATE_S = 3.0


class SourceWatch:
    """The newest sample of each device of one source. `run` is the thread; others may ask for the rest."""

    def __init__(
        self,
        source: DeviceSource,
        every_s: float,
        *,
        thoroughly_every_s: float,
        now_unix_s: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.vendor: Vendor = source.vendor
        self.histories: dict[str, DeviceHistory] = {}
        # Looks that ended in an error that no source tells of itself.
        self.failures = 0
        self._source = source
        self._every_s, self._thoroughly_every_s = every_s, thoroughly_every_s
        self._now_unix_s, self._monotonic = now_unix_s, monotonic
        # Replaced as a whole: whoever reads sees one look or the next, never half of each.
        self._pairs: tuple[tuple[Device, DeviceSample], ...] = ()
        self._status: tuple[VendorStatus, ...] = (
            VendorStatus(vendor=self.vendor, absent_reason="it is being looked for"),
        )
        self._devices: tuple[Device, ...] = ()
        self._took_s: deque[float] = deque(maxlen=2)
        self._discovered_at = self._thorough_at = -1e9
        self._answered_at = monotonic()
        self._samples = 0
        self._news = threading.Condition()

    def run(self, ended: threading.Event) -> None:
        """Look until `ended`; what the source holds is given back by the thread that used it."""
        due = self._monotonic()
        while not ended.is_set():
            try:
                self.look()
            except Exception as error:  # noqa: BLE001 - told; what is known becomes old until a look succeeds
                self._failed(error)
            due = max(due + self._pause_s, self._monotonic())
            ended.wait(due - self._monotonic())
        self._source.close()

    def look(self) -> None:
        """Discover where it is time for that, then sample."""
        began = self._monotonic()
        if began >= self._discovered_at + self._rediscover_s:
            self._discover()
        thoroughly = began >= self._thorough_at + self._thoroughly_every_s
        started = self._monotonic()
        samples = self._source.sample(self._devices, thoroughly=thoroughly) if self._devices else []
        if thoroughly:
            self._thorough_at = began
        else:
            self._took_s.append(self._monotonic() - started)
        for device, sample in zip(self._devices, samples, strict=True):
            self.histories.setdefault(device_key(device), DeviceHistory()).add(sample)
        self._pairs = tuple(zip(self._devices, samples, strict=True))
        self._answered_at = self._monotonic()
        self._looked()

    def pairs(self) -> tuple[tuple[Device, DeviceSample], ...]:
        """Devices with their newest samples; stale ones where the source has not answered for long."""
        silent_s = self._monotonic() - self._answered_at
        if silent_s <= self._pause_s + _LATE_S:
            return self._pairs
        why = f"the driver has not answered for {silent_s:.0f} s"
        return tuple(
            (device, sample if sample.state == "down" else _stale(sample, why))
            for device, sample in self._pairs
        )

    def vendors(self) -> tuple[VendorStatus, ...]:
        """How the vendor's driver answered."""
        return self._status

    def wait_for(self, samples: int, timeout_s: float) -> bool:
        """Wait until there were so many samples, or it is known that there is nothing to sample."""

        def enough() -> bool:
            return self._samples >= samples or (self._samples > 0 and not self._devices)

        with self._news:
            return self._news.wait_for(enough, max(0.0, timeout_s))

    @property
    def _pause_s(self) -> float:
        if self._samples and not self._devices:
            return max(self._every_s, REDISCOVER_LOST_S)
        usual = min(self._took_s, default=0.0)
        return max(self._every_s, min(_PAUSE_MOST_S, usual / _BUSY_SHARE_MOST))

    @property
    def _rediscover_s(self) -> float:
        lost = self._pairs and not any(sample.state == "up" for _, sample in self._pairs)
        return REDISCOVER_LOST_S if lost else REDISCOVER_EVERY_S

    def _looked(self) -> None:
        with self._news:
            self._samples += 1
            self._news.notify_all()

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        soon = self._monotonic() + REDISCOVER_LOST_S
        self._discovered_at = min(self._discovered_at, soon - REDISCOVER_EVERY_S)
        self._status = (
            VendorStatus(
                vendor=self.vendor,
                problem_code=f"{self.vendor}.look_failed",
                problem=f"looking at {self.vendor} devices failed: {error_line(error)}",
                fix="flatout doctor   # it is tried again every few seconds",
            ),
        )
        self._looked()

    def _discover(self) -> None:
        self._discovered_at = self._monotonic()
        found = self._source.discover()
        if found.devices or not self._devices:
            self._devices = found.devices
        # Else a driver that went away: its devices are told as down until it is back.
        self._thorough_at = -1e9
        self._status = vendor_statuses(self.vendor, found)
        self._forget_the_gone()

    def _forget_the_gone(self) -> None:
        """MIG instances get new names whenever they are made: what is no more does not pile up."""
        present = {device_key(device) for device in self._devices}
        for key in [key for key in self.histories if key not in present]:
            del self.histories[key]


def device_key(device: Device) -> str:
    """What a device's history is kept under: its uuid, where it has one."""
    return device.uuid or f"{device.vendor}-{device.index}"


def error_line(error: Exception) -> str:
    """An error that nobody reckoned with, in a line."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _stale(sample: DeviceSample, why: str) -> DeviceSample:
    return dataclasses.replace(sample, state="stale", state_reason=why)
