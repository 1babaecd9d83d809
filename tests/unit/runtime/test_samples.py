"""GPUs are sampled beside a job a few times a second, and what is dear of that now and then."""

import time
from collections.abc import Sequence

import pytest

from flatout.hardware.nvidia.source import NvidiaSource
from flatout.records.device import Device, DeviceSample
from flatout.runtime import samples
from flatout.runtime.samples import DeviceSampler
from tests.fakes.nvml import FakeNvml


class Counting(NvidiaSource):
    """The fake GPU's source, which notes how thoroughly it was asked."""

    def __init__(self) -> None:
        super().__init__(FakeNvml())
        self.asked: list[bool] = []

    def sample(self, devices: Sequence[Device], *, thoroughly: bool = True) -> list[DeviceSample]:
        self.asked.append(thoroughly)
        return super().sample(devices, thoroughly=thoroughly)


def test_the_first_sample_is_thorough_and_most_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "_PERIOD_S", 0.001)
    source = Counting()
    until = time.monotonic() + 20
    with DeviceSampler([source]) as sampler:
        while len(sampler.samples) < 30 and time.monotonic() < until:
            time.sleep(0.01)
    assert source.asked[:30] == [True, *[False] * 24, True, *[False] * 4]
    # What is read seldom is in all of them.
    assert {one.pcie_width for one in sampler.samples} == {16}
