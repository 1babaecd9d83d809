"""What adds up from frame to frame: throttled time, and the energy of GPUs that keep no count of it."""

import threading

from flatout.analyze.energy import EnergyFollower
from flatout.analyze.throttling import ThrottlingFollower
from flatout.records.watching import Frame


class Seen:
    """Counters that live as long as the exporter. Frames may come again: each sample counts once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._throttling = ThrottlingFollower()
        self._energy = EnergyFollower()

    def see(self, frame: Frame) -> None:
        """Take in a frame, in the order of time."""
        with self._lock:
            for sample in frame.samples:
                self._throttling.add(sample)
                self._energy.add(sample)

    def throttled_s(self, key: str) -> dict[str, float]:
        """Seconds by reason, of the device that samples call so."""
        with self._lock:
            return dict(self._throttling.of(key).given_s)

    def energy_j(self, key: str) -> float | None:
        """By the power it drew, or its counter, since the first frame."""
        with self._lock:
            return self._energy.of(key).joules
