"""A recording as if it happened now: the frames and histories of a live machine, with a place to go to."""

import time
from collections.abc import Callable

from flatout.monitor.history import DeviceHistory
from flatout.monitor.recording import Recording
from flatout.monitor.source_watch import device_key
from flatout.records.watching import Frame

# After a jump, curves are drawn anew from so many frames before.
_REMEMBERED = 600


class Replay:
    """Plays a recording. Time between frames is as it was, but no longer than `longest_s`."""

    def __init__(
        self,
        recording: Recording,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        longest_s: float = 5.0,
    ) -> None:
        self._recording = recording
        self._monotonic = monotonic
        self._longest_s = longest_s
        self._histories: dict[str, DeviceHistory] = {}
        self.paused = False
        self.place = 0
        self._frame = self._read(0)
        self._due = self._monotonic() + self._gap_s()

    def __len__(self) -> int:
        return len(self._recording)

    def frame(self) -> Frame:
        """The frame of this moment."""
        while not self.paused and self.place + 1 < len(self) and self._monotonic() >= self._due:
            self.place += 1
            self._frame = self._read(self.place)
            self._due += self._gap_s()
        return self._frame

    def history(self, uuid: str) -> DeviceHistory:
        """What the device did until this moment."""
        return self._histories.get(uuid) or DeviceHistory(samples_kept=1, minutes_kept=1)

    def pause(self) -> None:
        """Stand still, or go on."""
        self.paused = not self.paused
        self._due = self._monotonic() + self._gap_s()

    def jump(self, frames: int) -> None:
        """Go so many frames forth, or back."""
        self.go_to(self.place + frames)

    def go_to(self, place: int) -> None:
        """Go to the frame of this number, the first or the last where there is no such."""
        place = max(0, min(len(self) - 1, place))
        if place == self.place:
            return
        began = self.place + 1 if place > self.place else 0
        if place < self.place:
            self._histories = {}
        for number in range(max(began, place - _REMEMBERED), place + 1):
            self._frame = self._read(number)
        self.place = place
        self._due = self._monotonic() + self._gap_s()

    def _read(self, number: int) -> Frame:
        frame = self._recording[number]
        for device, sample in zip(frame.devices, frame.samples, strict=False):
            self._histories.setdefault(device_key(device), DeviceHistory()).add(sample)
        return frame

    def _gap_s(self) -> float:
        if self.place + 1 >= len(self):
            return self._longest_s
        following = self._recording[self.place + 1].taken_at_unix_s
        return min(self._longest_s, max(0.0, following - self._frame.taken_at_unix_s))
