"""Watches clocks, power and throttling while something else measures."""

import threading
from collections.abc import Callable

from flatout.hardware.protocol import DeviceSource
from flatout.records.device import Device, DeviceSample
from flatout.records.limits import ClockState

_PERIOD_S = 0.1


class ClockWatch:
    """Samples one device in a thread; used as a context manager."""

    def __init__(self, source: DeviceSource | None, device: Device) -> None:
        self._source = source
        self._device = device
        self._samples: list[DeviceSample] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="flatout-clocks", daemon=True)

    def __enter__(self) -> "ClockWatch":
        if self._source is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._source is not None:
            self._thread.join(timeout=5)

    def _watch(self) -> None:
        while self._source is not None and not self._stop.wait(_PERIOD_S):
            # Briefly: launches are timed meanwhile, and dear questions would hold them up.
            [sample] = self._source.sample([self._device], thoroughly=False)
            if sample.state == "up":
                self._samples.append(sample)

    def state(self) -> ClockState:
        """The range of what was seen, with the sample's own reason for what was not."""
        if not self._samples:
            none = "no sample of this device while measuring"
            return ClockState(samples=0, unknown=dict.fromkeys((*_RANGES, "throttle_reasons"), none))
        values: dict[str, int] = {}
        unknown: dict[str, str] = {}
        for field, (source, pick) in _RANGES.items():
            seen = [value for sample in self._samples if (value := getattr(sample, source)) is not None]
            if seen:
                values[field] = pick(seen)
            else:
                unknown[field] = self._samples[-1].unknown[source]
        reasons = [
            set(sample.throttle_reasons) for sample in self._samples if sample.throttle_reasons is not None
        ]
        if not reasons:
            unknown["throttle_reasons"] = self._samples[-1].unknown["throttle_reasons"]
        return ClockState(
            samples=len(self._samples),
            throttle_reasons=tuple(sorted(set().union(*reasons) - {"idle"})) if reasons else None,
            unknown=unknown,
            **values,
        )


# Our field -> the sample's field, and which of its values we keep.
_RANGES: dict[str, tuple[str, Callable[[list[int]], int]]] = {
    "clock_compute_min_hz": ("clock_compute_hz", min),
    "clock_compute_max_hz": ("clock_compute_hz", max),
    "power_max_mw": ("power_draw_mw", max),
    "power_limit_mw": ("power_limit_mw", min),
    "temperature_max_c": ("temperature_c", max),
}
