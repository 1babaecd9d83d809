"""Clocks while something else measures: seen often, and without holding up what is measured."""

import threading
from collections.abc import Sequence

from flatout.hardware.protocol import Discovery
from flatout.limits.clocks import ClockWatch
from flatout.records.device import Device, DeviceSample, Vendor
from tests.fakes.machines import h200, h200_sample


class Asked:
    """A source that remembers how it was asked."""

    vendor: Vendor = "nvidia"

    def __init__(self) -> None:
        self.thoroughly: list[bool] = []
        self.enough = threading.Event()

    def discover(self) -> Discovery:
        return Discovery(devices=(h200(),))

    def sample(self, devices: Sequence[Device], *, thoroughly: bool = True) -> list[DeviceSample]:
        self.thoroughly.append(thoroughly)
        if len(self.thoroughly) > 1:
            self.enough.set()
        return [h200_sample() for _ in devices]

    def close(self) -> None:
        pass


def test_dear_questions_are_not_asked_while_launches_are_timed() -> None:
    source = Asked()
    with ClockWatch(source, h200()) as watch:
        assert source.enough.wait(60)
    assert not any(source.thoroughly)
    assert watch.state().clock_compute_max_hz == h200_sample().clock_compute_hz
