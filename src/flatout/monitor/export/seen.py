"""What adds up from frame to frame: throttled time, and the energy of GPUs."""

import threading

from flatout.analyze.energy import EnergyFollower
from flatout.analyze.throttling import ThrottlingFollower
from flatout.records.device import DeviceSample
from flatout.records.watching import Frame


class Seen:
    """Counters that live as long as the exporter. Frames may come again: each sample counts once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._throttling = ThrottlingFollower()
        self._energy = EnergyFollower()
        # The last that each GPU's own counter told; and GPUs that were told by what they drew.
        self._counted_j: dict[str, float] = {}
        self._by_power: set[str] = set()

    def see(self, frame: Frame) -> None:
        """Take in a frame, in the order of time."""
        with self._lock:
            for sample in frame.samples:
                self._throttling.add(sample)
                self._energy.add(sample)
                self._choose_energy(sample)

    def throttled_s(self, key: str) -> dict[str, float]:
        """Seconds by reason, of the device that samples call so."""
        with self._lock:
            return dict(self._throttling.of(key).given_s)

    def energy_j(self, key: str) -> float | None:
        """By its own counter, as it was read last; where it was not read at first, since the first frame."""
        with self._lock:
            counted_j = self._counted_j.get(key)
            return counted_j if counted_j is not None else self._energy.of(key).joules

    def _choose_energy(self, sample: DeviceSample) -> None:
        """Once for each GPU: from one sum to the other is a leap, which a server would take for energy."""
        key = sample.uuid or f"{sample.index}"
        if sample.energy_total_mj is not None and key not in self._by_power:
            self._counted_j[key] = sample.energy_total_mj / 1000
        elif key not in self._counted_j and self._energy.of(key).joules is not None:
            self._by_power.add(key)
