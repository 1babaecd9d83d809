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
            [sample] = self._source.sample([self._device])
            if sample.state == "up":
                self._samples.append(sample)

    def state(self) -> ClockState:
        """The range of what was seen."""
        if not self._samples:
            return ClockState(
                samples=0, unknown=dict.fromkeys(_FIELDS, "no sample of this device while measuring")
            )
        seen = list(self._samples)
        reasons = [set(sample.throttle_reasons) for sample in seen if sample.throttle_reasons is not None]
        return ClockState(
            samples=len(seen),
            clock_compute_min_hz=_over(seen, lambda s: s.clock_compute_hz, min),
            clock_compute_max_hz=_over(seen, lambda s: s.clock_compute_hz, max),
            power_max_mw=_over(seen, lambda s: s.power_draw_mw, max),
            power_limit_mw=_over(seen, lambda s: s.power_limit_mw, min),
            temperature_max_c=_over(seen, lambda s: s.temperature_c, max),
            throttle_reasons=tuple(sorted(set().union(*reasons) - {"idle"})) if reasons else None,
            unknown={name: why for name, why in seen[-1].unknown.items() if name in _FIELDS},
        )


_FIELDS = (
    "clock_compute_min_hz",
    "clock_compute_max_hz",
    "power_max_mw",
    "power_limit_mw",
    "temperature_max_c",
    "throttle_reasons",
)


def _over(
    samples: list[DeviceSample], read: Callable[[DeviceSample], int | None], pick: Callable[[list[int]], int]
) -> int | None:
    values = [value for sample in samples if (value := read(sample)) is not None]
    return pick(values) if values else None
